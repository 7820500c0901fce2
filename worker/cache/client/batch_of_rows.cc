#include "worker/cache/client/batch_of_rows.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "ATen/ops/empty.h"
#include "common/tensor/torch_types.h"

namespace egeria::cache {
namespace {

// At most so many buffers wait to be used again: as many as batches may be under way on both sides.
constexpr size_t kMaxSpares = 16;

std::byte* BytesIn(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }

}  // namespace

at::Tensor BatchBuffers::Get(at::IntArrayRef shape, at::ScalarType type) {
  for (auto spare = spares_.begin(); spare != spares_.end(); ++spare) {
    // Nobody else has the tensor, or a view of it.
    const bool unused = spare->use_count() == 1 && spare->storage().use_count() == 1;
    if (unused && spare->sizes() == shape && spare->scalar_type() == type) {
      at::Tensor found = std::move(*spare);
      spares_.erase(spare);
      spares_.push_back(found);
      return found;
    }
  }
  if (spares_.size() >= kMaxSpares) spares_.pop_front();
  spares_.push_back(at::empty(shape, at::TensorOptions().dtype(type).pinned_memory(pinned_)));
  return spares_.back();
}

bool BatchOfRows::Add(size_t position, const std::vector<EntryTensor>& entry) {
  if (columns_.empty()) MakeColumns(entry);
  if (!Fits(entry)) return false;
  for (size_t t = 0; t < entry.size(); ++t) {
    Column& column = columns_[t];
    const size_t bytes = BytesOf(entry[t]);
    if (!IsRagged(column)) {
      if (bytes > 0) std::memcpy(BytesIn(column.tensor) + position * bytes, entry[t].data, bytes);
      continue;
    }
    column.lengths[position] = entry[t].shape[0];
    column.shape[0] = std::max(column.shape[0], entry[t].shape[0]);
    column.begins[position] = column.bytes.size();
    column.bytes.insert(column.bytes.end(), entry[t].data, entry[t].data + bytes);
  }
  return true;
}

std::vector<at::Tensor> BatchOfRows::Finish(std::vector<std::vector<int64_t>>* lengths) {
  std::vector<at::Tensor> tensors;
  for (Column& column : columns_) {
    tensors.push_back(IsRagged(column) ? MakeTensor(column) : std::move(column.tensor));
    if (ragged_) lengths->push_back(std::move(column.lengths));
  }
  return tensors;
}

void BatchOfRows::MakeColumns(const std::vector<EntryTensor>& entry) {
  for (const EntryTensor& tensor : entry) {
    Column& column = columns_.emplace_back(Column{.type = ToScalarType(tensor.dtype), .shape = tensor.shape});
    if (!IsRagged(column)) {
      std::vector<int64_t> shape = {static_cast<int64_t>(samples_)};
      shape.insert(shape.end(), tensor.shape.begin(), tensor.shape.end());
      column.tensor = buffers_.Get(shape, column.type);
      continue;
    }
    column.line_bytes = BytesOf({tensor.dtype, {tensor.shape.begin() + 1, tensor.shape.end()}, nullptr});
    column.lengths.assign(samples_, 0);
    column.begins.assign(samples_, 0);
  }
}

bool BatchOfRows::Fits(const std::vector<EntryTensor>& entry) const {
  if (columns_.size() != entry.size()) return false;
  for (size_t t = 0; t < entry.size(); ++t) {
    const Column& column = columns_[t];
    const auto& shape = entry[t].shape;
    const size_t from = IsRagged(column) ? 1 : 0;
    if (ToScalarType(entry[t].dtype) != column.type || shape.size() != column.shape.size() ||
        !std::equal(shape.begin() + from, shape.end(), column.shape.begin() + from)) {
      return false;
    }
  }
  return true;
}

at::Tensor BatchOfRows::MakeTensor(const Column& column) {
  std::vector<int64_t> shape = {static_cast<int64_t>(samples_)};
  shape.insert(shape.end(), column.shape.begin(), column.shape.end());
  at::Tensor tensor = buffers_.Get(shape, column.type);
  const size_t row_bytes = static_cast<size_t>(column.shape[0]) * column.line_bytes;
  for (size_t i = 0; i < samples_ && row_bytes > 0; ++i) {
    std::byte* const row = BytesIn(tensor) + i * row_bytes;
    const size_t bytes = static_cast<size_t>(column.lengths[i]) * column.line_bytes;
    if (bytes > 0) std::memcpy(row, column.bytes.data() + column.begins[i], bytes);
    std::memset(row + bytes, 0, row_bytes - bytes);
  }
  return tensor;
}

}  // namespace egeria::cache

#include "worker/cache/entry/entry.h"

#include <cstring>
#include <memory>

#include "common/base/status.h"
#include "worker/cache/entry/xxh3.h"

namespace egeria::cache {
namespace {

constexpr uint32_t kMagic = 0x32414745;  // "EGA2"
constexpr size_t kAlignment = 64;        // where each tensor's bytes begin, counted from the entry's beginning

// The header is little-endian, as are all machines that torch runs on.
struct Header {
  uint32_t magic = kMagic;
  uint32_t tensors = 0;
  uint64_t checksum = 0;  // XXH3-64 of the key and of all that follows this field
  uint64_t input_hash = 0;
};
static_assert(sizeof(Header) == 24);
constexpr size_t kChecked = offsetof(Header, input_hash);  // the checksum covers the entry from here on

// A TensorHeader and the sizes for each tensor come before the first tensor's bytes.
struct TensorHeader {
  uint32_t dtype = 0;
  uint16_t format = 0;
  uint16_t dimensions = 0;
  uint64_t stored_bytes = 0;
};

size_t Aligned(size_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

size_t HeadersSize(std::span<const EntryTensor> tensors) {
  size_t bytes = sizeof(Header);
  for (const EntryTensor& tensor : tensors) bytes += sizeof(TensorHeader) + tensor.shape.size() * sizeof(int64_t);
  return bytes;
}

uint64_t Checksum(const EntryKey& key, std::span<const std::byte> entry) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  XXH3_64bits_update(state.get(), key.name.text().data(), key.name.text().size());
  XXH3_64bits_update(state.get(), key.prefix.data(), key.prefix.size());
  XXH3_64bits_update(state.get(), &key.sample, sizeof(key.sample));
  XXH3_64bits_update(state.get(), entry.data() + kChecked, entry.size() - kChecked);
  return XXH3_64bits_digest(state.get());
}

// Reads a struct at `*at` and moves on. Returns false where the entry ends before the struct does.
template <typename T>
bool Take(std::span<const std::byte> entry, size_t* at, T* value) {
  if (entry.size() - *at < sizeof(T)) return false;
  std::memcpy(value, entry.data() + *at, sizeof(T));
  *at += sizeof(T);
  return true;
}

// Reads the tensor and its values as they are stored. Returns false where the entry cannot be right, such as for more
// than `most_bytes` of values.
bool TakeTensorHeader(std::span<const std::byte> entry, size_t most_bytes, size_t* at, EntryTensor* tensor,
                      Stored* stored) {
  TensorHeader header;
  if (!Take(entry, at, &header) || header.dimensions > kMaxDimensions) return false;
  tensor->dtype = static_cast<DataType>(header.dtype);
  if (header.dtype > static_cast<uint32_t>(DataType::kBool) || ElementSize(tensor->dtype) == 0) return false;
  tensor->shape.resize(header.dimensions);
  size_t bytes = ElementSize(tensor->dtype);
  for (int64_t& size : tensor->shape) {
    if (!Take(entry, at, &size) || size < 0 || (size > 0 && bytes > most_bytes / static_cast<size_t>(size))) {
      return false;
    }
    bytes *= static_cast<size_t>(size);
  }
  *stored = {static_cast<StorageFormat>(header.format), header.stored_bytes};
  return stored->bytes <= entry.size();
}

}  // namespace

size_t BytesOf(const EntryTensor& tensor) {
  size_t bytes = ElementSize(tensor.dtype);
  for (const int64_t size : tensor.shape) bytes *= static_cast<size_t>(size);
  return bytes;
}

size_t EntrySize(std::span<const EntryTensor> tensors) {
  size_t size = HeadersSize(tensors);
  for (const EntryTensor& tensor : tensors) size = Aligned(size) + BytesOf(tensor);
  return size;
}

std::vector<std::byte> WriteEntry(const EntryKey& key, uint64_t input_hash, std::span<const EntryTensor> tensors,
                                  StorageFormat format, RoundingError* rounding) {
  EGERIA_CHECK(tensors.size() <= kMaxTensors);
  RoundingError ignored;
  std::vector<std::byte> out(EntrySize(tensors));
  std::vector<Stored> stored;
  size_t end = HeadersSize(tensors);
  for (const EntryTensor& tensor : tensors) {
    EGERIA_CHECK(tensor.shape.size() <= kMaxDimensions);
    const size_t begin = Aligned(end);
    std::memset(out.data() + end, 0, begin - end);
    stored.push_back(Store(format, tensor.dtype, tensor.shape, {tensor.data, BytesOf(tensor)},
                           std::span(out).subspan(begin), rounding == nullptr ? &ignored : rounding));
    end = begin + stored.back().bytes;
  }
  out.resize(end);
  size_t at = sizeof(Header);
  const auto put = [&](const void* data, size_t bytes) {
    if (bytes > 0) std::memcpy(out.data() + at, data, bytes);
    at += bytes;
  };
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorHeader header{static_cast<uint32_t>(tensors[t].dtype), static_cast<uint16_t>(stored[t].format),
                              static_cast<uint16_t>(tensors[t].shape.size()), stored[t].bytes};
    put(&header, sizeof(header));
    put(tensors[t].shape.data(), tensors[t].shape.size() * sizeof(int64_t));
  }
  Header header{.tensors = static_cast<uint32_t>(tensors.size()), .input_hash = input_hash};
  std::memcpy(out.data(), &header, sizeof(header));
  header.checksum = Checksum(key, out);
  std::memcpy(out.data(), &header, sizeof(header));
  return out;
}

bool ReadEntry(const EntryKey& key, std::span<const std::byte> bytes, size_t most_bytes, Entry* entry, bool* intact) {
  Header header;
  size_t at = 0;
  if (!Take(bytes, &at, &header) || header.magic != kMagic || header.tensors > kMaxTensors) return false;
  if (header.checksum != Checksum(key, bytes)) return false;
  if (intact != nullptr) *intact = true;
  entry->input_hash = header.input_hash;
  entry->tensors.resize(header.tensors);
  std::vector<Stored> stored(header.tensors);
  size_t restored_bytes = 0;
  for (size_t t = 0; t < stored.size(); ++t) {
    EntryTensor& tensor = entry->tensors[t];
    if (!TakeTensorHeader(bytes, most_bytes, &at, &tensor, &stored[t])) return false;
    if (stored[t].format != StorageFormat::kExact) restored_bytes += Aligned(BytesOf(tensor));
  }
  if (EntrySize(entry->tensors) > most_bytes) return false;
  if (entry->restored.size() < restored_bytes) entry->restored.resize(restored_bytes);
  std::span<std::byte> room = entry->restored;
  for (size_t t = 0; t < stored.size(); ++t) {
    EntryTensor& tensor = entry->tensors[t];
    const size_t size = BytesOf(tensor);
    at = Aligned(at);
    if (at > bytes.size() || bytes.size() - at < stored[t].bytes) return false;
    const std::span<const std::byte> values = bytes.subspan(at, stored[t].bytes);
    at += values.size();
    if (stored[t].format == StorageFormat::kExact) {
      if (values.size() != size) return false;
      tensor.data = values.data();
      continue;
    }
    if (!Restore(stored[t].format, tensor.dtype, tensor.shape, values, room.first(size))) return false;
    tensor.data = room.data();
    room = room.subspan(Aligned(size));
  }
  return at == bytes.size();
}

}  // namespace egeria::cache

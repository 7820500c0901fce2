#include "worker/session/row_proof.h"

#include <algorithm>
#include <exception>
#include <set>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/isfinite.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/std.h"
#include "ATen/ops/tensor.h"

namespace egeria::worker {
namespace {

// Elements to compare before a number of samples is taken to make no difference, and tries for that: with few elements
// the roundings may be the same by chance.
constexpr int64_t kEnoughElements = 4096;
constexpr int64_t kMaxRounds = 8;
// Neighbours in a batch are mostly not tried together.
constexpr int64_t kStride = 7;

at::Tensor RowsOf(const at::Tensor& batch, const RowNumbers& rows) {
  return batch.index_select(0, at::tensor(rows, at::TensorOptions().dtype(at::kLong).device(batch.device())));
}

at::Tensor Bytes(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.layout() == at::kStrided ? tensor.detach() : tensor.detach().to_dense();
  return dense.contiguous().view({-1}).view(at::kByte);
}

bool CanBeDisturbed(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) && at::isfinite(tensor).all().item<bool>();
}

// Proves on `input` and on the same with noise.
bool OnBoth(BatchFunction compute, const at::Tensor& input, const at::Tensor& output,
            absl::FunctionRef<bool(RowsFunction, const Tensors&)> holds) {
  const auto on = [&](const at::Tensor& batch, const at::Tensor& whole) {
    return holds([&](const RowNumbers& rows) { return Tensors{compute(RowsOf(batch, rows))}; }, {whole});
  };
  if (!on(input, output)) return false;
  const Tensors disturbed = Disturbed({input});
  return disturbed.empty() || on(disturbed[0], compute(disturbed[0]));
}

}  // namespace

bool AnyRows(const RowNumbers&) { return true; }

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  return a.numel() == 0 || at::equal(Bytes(a), Bytes(b));
}

bool SameRows(const Tensors& some, const Tensors& whole, const RowNumbers& rows) {
  return std::equal(some.begin(), some.end(), whole.begin(), whole.end(),
                    [&](const at::Tensor& mine, const at::Tensor& all) { return SameBits(mine, RowsOf(all, rows)); });
}

Tensors Disturbed(const Tensors& batch) {
  if (std::none_of(batch.begin(), batch.end(), CanBeDisturbed)) return {};
  const at::Generator random = at::detail::createCPUGenerator(static_cast<uint64_t>(batch[0].size(0)));
  Tensors disturbed;
  for (const at::Tensor& tensor : batch) {
    if (!CanBeDisturbed(tensor)) {
      disturbed.push_back(tensor);
      continue;
    }
    const at::Tensor noise =
        at::randn(tensor.sizes(), random, at::TensorOptions().dtype(at::kFloat)).to(tensor.options());
    const double spread = tensor.numel() > 1 ? tensor.to(at::kDouble).std(/*unbiased=*/true).item<double>() : 0;
    disturbed.push_back(tensor.add(noise, spread > 0 ? spread : 1.0));
  }
  return disturbed;
}

bool SameInAnyOrder(RowsFunction compute, const Tensors& whole, RowsPredicate comparable) {
  const int64_t size = whole[0].size(0);
  const auto reversed_from = [&](int64_t begin, int64_t copied) {  // the rows before `begin` are copies of a single one
    RowNumbers rows(static_cast<size_t>(size), copied);
    for (int64_t i = begin; i < size; ++i) rows[static_cast<size_t>(i)] = size - 1 - i;
    return rows;
  };
  const auto same = [&](const RowNumbers& rows) { return SameRows(compute(rows), whole, rows); };
  if (!same(reversed_from(0, 0))) return false;
  for (int64_t copied = size - 1; copied >= 0; --copied) {
    const RowNumbers rows = reversed_from(size / 2, copied);
    if (comparable(rows)) return same(rows);
  }
  return true;
}

bool SameAlone(RowsFunction compute, const Tensors& whole, int64_t size, RowsPredicate comparable) {
  const int64_t samples = whole[0].size(0);
  int64_t elements = 0;
  for (const at::Tensor& tensor : whole) elements += tensor.numel() / samples;
  const int64_t per_round = std::max<int64_t>(1, size * elements);
  const int64_t rounds = std::min(kMaxRounds, (kEnoughElements + per_round - 1) / per_round);
  int64_t tried = 0;
  try {
    for (int64_t begin = 0; begin < samples && tried < rounds; ++begin) {
      RowNumbers rows;
      for (int64_t i = 0; i < size; ++i) rows.push_back((begin + kStride * i) % samples);
      if (!comparable(rows)) continue;
      if (!SameRows(compute(rows), whole, rows)) return false;
      ++tried;
    }
  } catch (const std::exception&) {  // a model that needs whole batches
    return false;
  }
  return tried > 0;
}

std::vector<int64_t> SizesAlone(int64_t batch) {
  std::set<int64_t> sizes;
  for (int64_t size = 1; size < batch; size *= 2) sizes.insert(size);
  if (3 * batch / 4 > 0) sizes.insert(3 * batch / 4);
  return {sizes.begin(), sizes.end()};
}

bool RowsAreIndependent(BatchFunction compute, const at::Tensor& input, const at::Tensor& output) {
  return OnBoth(compute, input, output,
                [](RowsFunction rows, const Tensors& whole) { return SameInAnyOrder(rows, whole); });
}

bool RowsComputeAlone(BatchFunction compute, const at::Tensor& input, const at::Tensor& output, int64_t size) {
  try {
    return OnBoth(compute, input, output,
                  [size](RowsFunction rows, const Tensors& whole) { return SameAlone(rows, whole, size); });
  } catch (const std::exception&) {  // a model that refuses the noise
    return false;
  }
}

}  // namespace egeria::worker

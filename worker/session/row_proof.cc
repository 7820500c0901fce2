#include "worker/session/row_proof.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/isfinite.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/std.h"
#include "ATen/ops/tensor.h"

namespace egeria::worker {
namespace {

// Numbers of elements to compare before a number of samples is taken to make no difference, and of tries for that: of
// few elements the roundings may be the same by chance.
constexpr int64_t kEnoughElements = 4096;
constexpr int64_t kMaxRounds = 8;

at::Tensor Rows(const at::Tensor& batch, const std::vector<int64_t>& index) {
  return batch.index_select(0, at::tensor(index, at::TensorOptions().dtype(at::kLong).device(batch.device())));
}

bool SameRows(BatchFunction compute, const at::Tensor& input, const at::Tensor& output,
              const std::vector<int64_t>& index) {
  return SameBits(compute(Rows(input, index)), Rows(output, index));
}

// The batch with noise as large as its own spread; undefined where it has no numbers for that. Real inputs may be so
// regular (a blank image) that roundings do not show.
at::Tensor Disturbed(const at::Tensor& batch) {
  if (!at::isFloatingType(batch.scalar_type()) || batch.numel() < 2 || !at::isfinite(batch).all().item<bool>())
    return {};
  const at::Generator random = at::detail::createCPUGenerator(static_cast<uint64_t>(batch.size(0)));
  const at::Tensor noise = at::randn(batch.sizes(), random, at::TensorOptions().dtype(at::kFloat)).to(batch.options());
  const double spread = batch.to(at::kDouble).std(/*unbiased=*/true).item<double>();
  return batch.add(noise, spread > 0 ? spread : 1.0);
}

bool SameInAnyOrder(BatchFunction compute, const at::Tensor& input, const at::Tensor& output) {
  const int64_t size = input.size(0);
  std::vector<int64_t> reversed, halved;
  for (int64_t i = 0; i < size; ++i) {
    reversed.push_back(size - 1 - i);
    halved.push_back(i < size / 2 ? size - 1 : size - 1 - i);  // the others are copies of a single one
  }
  return SameRows(compute, input, output, reversed) && SameRows(compute, input, output, halved);
}

bool SameAlone(BatchFunction compute, const at::Tensor& input, const at::Tensor& output, int64_t size) {
  const int64_t samples = input.size(0);
  const int64_t per_round = std::max<int64_t>(1, size * (output.numel() / samples));
  const int64_t rounds = std::min(kMaxRounds, (kEnoughElements + per_round - 1) / per_round);
  for (int64_t begin = 0; begin < std::min(rounds, samples); ++begin) {
    std::vector<int64_t> index;
    for (int64_t i = 0; i < size; ++i) index.push_back((begin + 7 * i) % samples);
    if (!SameRows(compute, input, output, index)) return false;
  }
  return true;
}

}  // namespace

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const auto bytes = [](const at::Tensor& tensor) { return tensor.contiguous().view({-1}).view(at::kByte); };
  return a.numel() == 0 || at::equal(bytes(a), bytes(b));
}

bool RowsAreIndependent(BatchFunction compute, const at::Tensor& input, const at::Tensor& output) {
  if (!SameInAnyOrder(compute, input, output)) return false;
  const at::Tensor disturbed = Disturbed(input);
  return !disturbed.defined() || SameInAnyOrder(compute, disturbed, compute(disturbed));
}

bool RowsComputeAlone(BatchFunction compute, const at::Tensor& input, const at::Tensor& output, int64_t size) {
  try {
    if (!SameAlone(compute, input, output, size)) return false;
    const at::Tensor disturbed = Disturbed(input);
    return !disturbed.defined() || SameAlone(compute, disturbed, compute(disturbed), size);
  } catch (const std::exception&) {  // a model that needs whole batches
    return false;
  }
}

}  // namespace egeria::worker

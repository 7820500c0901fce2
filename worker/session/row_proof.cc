#include "worker/session/row_proof.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "ATen/ops/equal.h"
#include "ATen/ops/tensor.h"

namespace egeria::worker {
namespace {

// Numbers of elements to compare before a number of samples is taken to make no difference, and of tries for that: of
// few elements the roundings may be the same by chance.
constexpr int64_t kEnoughElements = 4096;
constexpr int64_t kMostRounds = 8;

at::Tensor Rows(const at::Tensor& batch, const std::vector<int64_t>& index) {
  return batch.index_select(0, at::tensor(index, at::TensorOptions().dtype(at::kLong).device(batch.device())));
}

bool SameRows(BatchFunction compute, const at::Tensor& input, const at::Tensor& output,
              const std::vector<int64_t>& index) {
  return SameBits(compute(Rows(input, index)), Rows(output, index));
}

}  // namespace

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const auto bytes = [](const at::Tensor& tensor) { return tensor.contiguous().view({-1}).view(at::kByte); };
  return a.numel() == 0 || at::equal(bytes(a), bytes(b));
}

bool RowsAreIndependent(BatchFunction compute, const at::Tensor& input, const at::Tensor& output) {
  const int64_t size = input.size(0);
  std::vector<int64_t> reversed, halved;
  for (int64_t i = 0; i < size; ++i) {
    reversed.push_back(size - 1 - i);
    halved.push_back(i < size / 2 ? size - 1 : size - 1 - i);  // the others are copies of a single one
  }
  return SameRows(compute, input, output, reversed) && SameRows(compute, input, output, halved);
}

bool RowsComputeAlone(BatchFunction compute, const at::Tensor& input, const at::Tensor& output, int64_t size) {
  const int64_t samples = input.size(0);
  const int64_t per_round = std::max<int64_t>(1, size * (output.numel() / samples));
  const int64_t rounds = std::min(kMostRounds, (kEnoughElements + per_round - 1) / per_round);
  for (int64_t begin = 0; begin < std::min(rounds, samples); ++begin) {
    std::vector<int64_t> index;
    for (int64_t i = 0; i < size; ++i) index.push_back((begin + 7 * i) % samples);
    try {
      if (!SameRows(compute, input, output, index)) return false;
    } catch (const std::exception&) {  // a model that needs whole batches
      return false;
    }
  }
  return true;
}

}  // namespace egeria::worker

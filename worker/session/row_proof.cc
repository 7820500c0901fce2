#include "worker/session/row_proof.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <set>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ops/cat.h"
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

bool AreAlike(const Tensors& some, const Tensors& others) {
  return std::equal(some.begin(), some.end(), others.begin(), others.end(),
                    [](const at::Tensor& a, const at::Tensor& b) {
                      return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
                    });
}

int64_t ElementsOfARow(const Tensors& whole) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : whole) elements += tensor.numel() / tensor.size(0);
  return elements;
}

// Compares the samples of [begin, end), one half of a batch, in the places of the other half, among copies of a single
// one; where no such batch is comparable, among the others as they are.
bool SameAmongCopies(absl::FunctionRef<bool(const RowNumbers&)> same, int64_t size, int64_t begin, int64_t end,
                     RowsPredicate comparable) {
  for (int64_t copied = size - 1; copied >= 0; --copied) {
    RowNumbers rows(static_cast<size_t>(size), copied);
    if (begin > 0) {
      std::iota(rows.begin(), rows.begin() + (end - begin), begin);
    } else {
      std::iota(rows.rbegin(), rows.rbegin() + end, 0);
    }
    if (comparable(rows)) return same(rows);
  }
  RowNumbers turned(static_cast<size_t>(size));
  std::iota(turned.begin(), turned.end(), 0);
  std::rotate(turned.begin(), turned.begin() + size / 2, turned.end());
  return same(turned);
}

// Returns the batch with its last samples behind it, with noise.
at::Tensor WithNoise(const at::Tensor& batch, const at::Tensor& disturbed, int64_t noisy) {
  return at::cat({batch, disturbed.narrow(0, batch.size(0) - noisy, noisy)});
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

int64_t NoisyRows(const Tensors& whole) {
  const int64_t size = whole[0].size(0), most = size - size / 2;
  return most * ElementsOfARow(whole) < kEnoughElements ? size : most;
}

RowNumbers AlternatingRows(int64_t batch) {
  RowNumbers rows;
  for (int64_t place = 0; place < batch; ++place) rows.push_back(place % 2 == 0 ? batch + place : place);
  return rows;
}

Tensors ProveRows(RowsFunction compute, const Tensors& whole, int64_t noisy, RowsPredicate comparable) {
  const int64_t size = whole[0].size(0), half = size / 2;
  Tensors known = whole;
  const auto same = [&](const RowNumbers& rows) { return SameRows(compute(rows), known, rows); };
  if (noisy == 0) {
    return SameAmongCopies(same, size, half, size, comparable) && SameAmongCopies(same, size, 0, half, comparable)
               ? known
               : Tensors();
  }
  // Computes some samples with noise and others without, and adds the former to what is known.
  const auto learn = [&](int64_t first_noisy, const RowNumbers& others, bool noisy_first) {
    const auto count = size - static_cast<int64_t>(others.size());
    RowNumbers rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), first_noisy);
    rows.insert(noisy_first ? rows.end() : rows.begin(), others.begin(), others.end());
    const Tensors computed = compute(rows);
    if (!AreAlike(computed, whole)) return false;
    const int64_t from = noisy_first ? 0 : size - count;
    for (size_t i = 0; i < known.size(); ++i) known[i] = at::cat({known[i], computed[i].narrow(0, from, count)});
    return SameRows(computed, known, rows);
  };
  RowNumbers first_half, second_half, turned;
  for (int64_t row = half - 1; row >= 0; --row) first_half.push_back(row);
  for (int64_t row = half; row < size; ++row) second_half.push_back(row);
  if (noisy == size) {
    if (!learn(size, second_half, /*noisy_first=*/false) || !learn(size + half, first_half, /*noisy_first=*/true)) {
      return {};
    }
    for (int64_t place = 0; place < size; ++place) turned.push_back(size + (place + size - (size > 2 ? 1 : 0)) % size);
    return same(turned) ? known : Tensors();
  }
  if (!learn(size, first_half, /*noisy_first=*/true)) return {};
  // The other samples, and most of those with noise, the last ones of which give way to copies.
  turned = second_half;
  for (int64_t i = 0; i < half; ++i) turned.push_back(size + (4 * i < 3 * half ? (2 * half - i) % noisy : 0));
  return same(turned) ? known : Tensors();
}

bool SameAlone(RowsFunction compute, const Tensors& whole, int64_t size, RowsPredicate comparable) {
  const int64_t samples = whole[0].size(0);
  const int64_t per_round = std::max<int64_t>(1, size * ElementsOfARow(whole));
  const int64_t least = size == 1 ? 2 : 1;  // samples next to each other may be of different kinds
  const int64_t rounds = std::clamp((kEnoughElements + per_round - 1) / per_round, least, kMaxRounds);
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
  const Tensors disturbed = Disturbed({input});
  const int64_t noisy = disturbed.empty() ? 0 : NoisyRows({output});
  const at::Tensor samples = noisy == 0 ? input : WithNoise(input, disturbed[0], noisy);
  const auto rows = [&](const RowNumbers& numbers) { return Tensors{compute(RowsOf(samples, numbers))}; };
  return !ProveRows(rows, {output}, noisy).empty();
}

bool RowsComputeAlone(BatchFunction compute, const at::Tensor& input, const at::Tensor& output, int64_t size) {
  const auto alone = [&](const at::Tensor& batch, const at::Tensor& whole) {
    return SameAlone([&](const RowNumbers& rows) { return Tensors{compute(RowsOf(batch, rows))}; }, {whole}, size);
  };
  const Tensors disturbed = Disturbed({input});
  try {
    if (disturbed.empty()) return alone(input, output);
    const at::Tensor both = RowsOf(WithNoise(input, disturbed[0], input.size(0)), AlternatingRows(input.size(0)));
    return alone(both, compute(both));
  } catch (const std::exception&) {  // a model that refuses the noise
    return false;
  }
}

}  // namespace egeria::worker

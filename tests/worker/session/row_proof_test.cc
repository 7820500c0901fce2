#include "worker/session/row_proof.h"

#include <stdexcept>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "gtest/gtest.h"

namespace egeria::worker {
namespace {

at::Tensor Places(const at::Tensor& batch) { return at::arange(batch.size(0), at::kFloat).unsqueeze(1) * 1e-7; }

TEST(RowProof, HoldsForWhatLooksAtOneSampleOnly) {
  const auto doubled = [](const at::Tensor& batch) { return batch * 2; };
  const at::Tensor batch = at::randn({8, 5});
  EXPECT_TRUE(RowsAreIndependent(doubled, batch, doubled(batch)));
  EXPECT_TRUE(RowsComputeAlone(doubled, batch, doubled(batch), 1));
  const at::Tensor words = at::randint(0, 100, {8, 5}, at::kLong);
  EXPECT_TRUE(RowsAreIndependent(doubled, words, doubled(words))) << "no noise for whole numbers";
}

TEST(RowProof, FailsWhereThePlaceOrTheOthersMatter) {
  const at::Tensor batch = at::randn({8, 5});
  const auto placed = [](const at::Tensor& rows) { return rows + Places(rows); };
  EXPECT_FALSE(RowsAreIndependent(placed, batch, placed(batch)));
  const auto centred = [](const at::Tensor& rows) { return rows - rows.mean(0, /*keepdim=*/true); };
  EXPECT_FALSE(RowsAreIndependent(centred, batch, centred(batch)));
  EXPECT_FALSE(RowsComputeAlone(centred, batch, centred(batch), 1));
  const auto whole = [](const at::Tensor& rows) {
    if (rows.size(0) != 8) throw std::runtime_error("whole batches");
    return rows * 2;
  };
  EXPECT_FALSE(RowsComputeAlone(whole, batch, whole(batch), 3));
}

// As where a kernel adds up in another order: of a blank image all sums are alike.
TEST(RowProof, OfRegularInputsDoesNotHideRoundings) {
  const auto rounded = [](const at::Tensor& rows) {
    return at::where(rows == rows.round(), rows, rows + Places(rows));
  };
  for (const at::Tensor& blank : {at::zeros({8, 5}), at::ones({8, 5})}) {
    EXPECT_FALSE(RowsAreIndependent(rounded, blank, rounded(blank)));
    EXPECT_FALSE(RowsComputeAlone(rounded, blank, rounded(blank), 3));
  }
}

at::Tensor Numbers(const at::Tensor& batch) { return at::arange(batch.size(0)).unsqueeze(1); }

// These depend on a sample's place, or on other samples, only in some places or for some samples.
at::Tensor FirstIsSpecial(const at::Tensor& rows) { return rows + (Numbers(rows) == 0) * 1e-3; }
at::Tensor LastIsSpecial(const at::Tensor& rows) { return rows + (Numbers(rows) == rows.size(0) - 1) * 1e-3; }
at::Tensor EveryEighthIsSpecial(const at::Tensor& rows) { return rows * 3 + (Numbers(rows) % 8 == 5) * 1e-3; }
at::Tensor MiddleIsSpecial(const at::Tensor& rows) {
  return rows + (Numbers(rows) * 2 - (rows.size(0) - 1)).abs() * 1e-3;
}
at::Tensor LargeOnesLookAtTheOthers(const at::Tensor& rows) {
  return at::where(rows.sum(1, true) > 0, rows - rows.mean(0, true), rows);
}
at::Tensor AllTakeTheFirstAlong(const at::Tensor& rows) { return rows + rows.narrow(0, 0, 1) * 1e-3; }
at::Tensor LooksAtThePlaceBefore(const at::Tensor& rows) { return rows + rows.roll(1, 0) * 1e-3; }

TEST(RowProof, FindsWhatDependsOnPlaceOrCompanyForSomeSamplesOnly) {
  for (const int64_t size : {2, 3, 5, 8, 17, 32}) {
    const at::Tensor real = at::randn({size, 5}, at::detail::createCPUGenerator(size));
    for (const at::Tensor& batch : {real, (real * 100).to(at::kInt).to(at::kDouble)}) {
      for (const auto& function : {FirstIsSpecial, LastIsSpecial, AllTakeTheFirstAlong, LooksAtThePlaceBefore}) {
        EXPECT_FALSE(RowsAreIndependent(function, batch, function(batch))) << size;
      }
      if (size > 2) {
        EXPECT_FALSE(RowsAreIndependent(MiddleIsSpecial, batch, MiddleIsSpecial(batch))) << size;
      }
      if (size > 5) {
        EXPECT_FALSE(RowsAreIndependent(LargeOnesLookAtTheOthers, batch, LargeOnesLookAtTheOthers(batch))) << size;
        EXPECT_FALSE(RowsAreIndependent(EveryEighthIsSpecial, batch, EveryEighthIsSpecial(batch))) << size;
      }
    }
    const at::Tensor words = (real * 100).to(at::kLong);  // these take no noise
    for (const auto& function : {FirstIsSpecial, LastIsSpecial, AllTakeTheFirstAlong, LooksAtThePlaceBefore}) {
      EXPECT_FALSE(RowsAreIndependent(function, words, function(words))) << size;
    }
  }
}

TEST(RowProof, HoldsForBatchesOfAnySizeInTwoBatchesOrThree) {
  for (const int64_t size : {1, 2, 3, 8, 33}) {
    for (const int64_t width : {5, 5'000}) {
      const at::Tensor real = at::randn({size, width});
      for (const at::Tensor& batch : {real, (real * 100).to(at::kLong)}) {
        int batches = 0;
        const auto doubled = [&](const at::Tensor& rows) {
          ++batches;
          EXPECT_EQ(rows.size(0), size);
          return rows * 2;
        };
        EXPECT_TRUE(RowsAreIndependent(doubled, batch, batch * 2));
        EXPECT_EQ(batches, batch.is_floating_point() && (size == 1 || width == 5) ? 3 : 2) << size;
      }
    }
  }
}

// Rounds otherwise in the last places, where a kernel has less than a full tile to do: blank images do not show it.
TEST(RowProof, FindsRoundingsOfTheLastPlaces) {
  const int64_t size = 30;
  const auto tiled = [](const at::Tensor& rows) {
    return at::where((Numbers(rows) >= rows.size(0) / 8 * 8) & (rows != 0), rows + 1e-7, rows);
  };
  for (const at::Tensor& batch : {at::zeros({size, 5}), at::randn({size, 5}), at::zeros({size, 5'000})}) {
    EXPECT_FALSE(RowsAreIndependent(tiled, batch, tiled(batch)));
  }
}

// Some models ask whether a mask is set throughout. Only batches of which that is as true are comparable.
TEST(RowProof, OfComparableBatchesFindsWhatElseDependsOnTheOthers) {
  constexpr int64_t kSize = 8;
  for (const bool noisy : {false, true}) {
    at::Tensor rows = at::randn({noisy ? 2 * kSize : kSize, 5});
    at::Tensor masked = at::zeros({rows.size(0)}, at::kBool);
    masked[6] = true;  // and its counterpart with noise
    if (noisy) masked[14] = true;
    const auto comparable = [&](const RowNumbers& numbers) {
      return masked.index_select(0, at::tensor(numbers)).any().item<bool>();
    };
    int compared = 0;
    const auto proves = [&](auto function) {
      const RowsFunction compute = [&](const RowNumbers& numbers) {
        EXPECT_TRUE(comparable(numbers));
        ++compared;
        return Tensors{function(rows.index_select(0, at::tensor(numbers)))};
      };
      return !ProveRows(compute, {function(rows.narrow(0, 0, kSize))}, noisy ? kSize : 0, comparable).empty();
    };
    EXPECT_TRUE(proves([](const at::Tensor& batch) { return batch * 2; }));
    EXPECT_LE(compared, 3);
    EXPECT_FALSE(proves(FirstIsSpecial));
    EXPECT_FALSE(proves(LastIsSpecial));
    EXPECT_FALSE(proves(AllTakeTheFirstAlong));
    EXPECT_FALSE(proves([](const at::Tensor& batch) { return batch - batch.mean(0, true); }));
  }
}

TEST(RowProof, OfSamplesAloneLooksAtThoseWithAndWithoutNoise) {
  const at::Tensor batch = at::zeros({8, 5000});
  const auto blank_needs_company = [](const at::Tensor& rows) {
    return rows.size(0) < 8 ? rows + (rows == 0) * 1e-7 : rows.clone();
  };
  const auto noise_needs_company = [](const at::Tensor& rows) {
    return rows.size(0) < 8 ? rows + (rows != 0) * 1e-7 : rows.clone();
  };
  for (const int64_t size : {1, 2, 4, 6}) {
    EXPECT_FALSE(RowsComputeAlone(blank_needs_company, batch, batch, size));
    EXPECT_FALSE(RowsComputeAlone(noise_needs_company, batch, batch, size));
  }
}

}  // namespace
}  // namespace egeria::worker

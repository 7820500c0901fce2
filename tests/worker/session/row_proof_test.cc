#include "worker/session/row_proof.h"

#include <stdexcept>

#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
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

}  // namespace
}  // namespace egeria::worker

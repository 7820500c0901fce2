#include "worker/cache/client/cost_model.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::cache {
namespace {

using ::testing::HasSubstr;
using State = CostModel::State;

// Passes in which the frozen layers are skipped; returns how many went through the cache.
int Skip(CostModel* model, int passes, double fetch_seconds, double hit_share = 1) {
  int used = 0;
  for (int pass = 0; pass < passes; ++pass) {
    if (!model->Use()) continue;
    ++used;
    model->Fetched(fetch_seconds, hit_share);
  }
  return used;
}

CostModel Measured(double forward_seconds) {
  CostModel model;
  model.SamplesRepeat(true);
  for (int pass = 0; pass < 4; ++pass) {
    EXPECT_TRUE(model.Use());
    model.Computed(forward_seconds);
    model.Filled(forward_seconds / 100);
  }
  return model;
}

TEST(CostModelTest, DoesNothingUntilSamplesAreKnownToRepeat) {
  CostModel model;
  EXPECT_FALSE(model.Use());
  EXPECT_EQ(model.estimates().state, State::kUnknown);
  model.SamplesRepeat(true);
  EXPECT_TRUE(model.Use());
  EXPECT_EQ(model.estimates().state, State::kTrying);
}

TEST(CostModelTest, RandomAugmentationSwitchesOffUntilItEnds) {
  CostModel model;
  model.SamplesRepeat(false);
  for (int pass = 0; pass < 3 * CostModel::kLongestRest; ++pass) ASSERT_FALSE(model.Use());
  EXPECT_THAT(model.estimates().reason, HasSubstr("random augmentation"));
  model.SamplesRepeat(true);
  EXPECT_TRUE(model.Use());
  model.SamplesRepeat(true);
  EXPECT_EQ(model.estimates().state, State::kTrying);
}

TEST(CostModelTest, StaysOnWhereAFetchTakesLessThanItSaves) {
  CostModel model = Measured(0.010);
  EXPECT_EQ(Skip(&model, 1000, 0.002), 1000);
  const CostModel::Estimates estimates = model.estimates();
  EXPECT_EQ(estimates.state, State::kOn);
  EXPECT_DOUBLE_EQ(*estimates.forward_seconds, 0.010);
  EXPECT_DOUBLE_EQ(*estimates.fetch_seconds, 0.002);
  EXPECT_NEAR(estimates.saved_seconds, 1000 * 0.008 - 4 * 0.0001, 1e-9);
  EXPECT_EQ(estimates.reason, "the frozen layers' forward pass takes 10.00 ms and a fetch 2.00 ms");
}

TEST(CostModelTest, IsSwitchedOffWhereItDoesNotPayAndTriedAgainMoreAndMoreRarely) {
  CostModel model = Measured(0.0011);
  EXPECT_EQ(Skip(&model, 100, 0.0019), static_cast<int>(CostModel::kEnough));
  EXPECT_EQ(model.estimates().state, State::kOff);
  EXPECT_EQ(model.estimates().reason, "the frozen layers' forward pass takes 1.10 ms and a fetch 1.90 ms");
  const int used = Skip(&model, 100'000, 0.0019);
  EXPECT_GE(used, 3 * static_cast<int>(CostModel::kEnough));
  EXPECT_LE(used, 12 * static_cast<int>(CostModel::kEnough));
  // It pays now: the next trial finds out.
  EXPECT_GT(Skip(&model, 3 * CostModel::kLongestRest, 0.0001), CostModel::kLongestRest);
  EXPECT_EQ(model.estimates().state, State::kOn);
}

TEST(CostModelTest, ASmallChangeAboutTheLimitDoesNotSwitchBackAndForth) {
  CostModel model = Measured(0.010);
  EXPECT_EQ(Skip(&model, 50, 0.0085), 50);
  EXPECT_EQ(Skip(&model, 500, 0.0095), 500) << "on, and still paying";
  CostModel other = Measured(0.010);
  EXPECT_EQ(Skip(&other, 100, 0.0095), static_cast<int>(CostModel::kEnough)) << "not enough to be switched on";
}

TEST(CostModelTest, AFewSlowFetchesDoNotCount) {
  CostModel model = Measured(0.010);
  Skip(&model, 100, 0.002);
  EXPECT_EQ(Skip(&model, 10, 0.5), 10);
  EXPECT_EQ(Skip(&model, 100, 0.002), 100);
}

// To compute one sample alone may take as long as a whole batch, but the next epoch will have them all.
TEST(CostModelTest, WhatIsMissingWhileItFillsDoesNotCount) {
  CostModel model = Measured(0.010);
  EXPECT_EQ(Skip(&model, 50, 0.012, 0.9), 50);
  EXPECT_EQ(model.state(), State::kTrying);
  EXPECT_EQ(Skip(&model, 50, 0.002), 50);
  EXPECT_EQ(model.state(), State::kOn);
  CostModel other = Measured(0.010);  // its quota has no room for all
  Skip(&other, 50, 0.012, 0.9);
  other.EpochPassed();
  EXPECT_EQ(Skip(&other, 50, 0.012, 0.9), static_cast<int>(CostModel::kEnough));
  EXPECT_EQ(other.state(), State::kOff);
}

// Most passes wait half a forward pass in vain, and compute.
TEST(CostModelTest, IsSwitchedOffWhereTooMuchComesTooLate) {
  CostModel model = Measured(0.010);
  EXPECT_EQ(Skip(&model, 50, 0.002), 50);
  const auto pass = [&model](int number, int late_of_ten) {
    if (!model.Use()) return false;
    if (number % 10 < late_of_ten) {
      model.Computed(0.010);
      model.Filled(0.005);
    } else {
      model.Fetched(0.002, 1);
    }
    return true;
  };
  for (int number = 0; number < 1000; ++number) ASSERT_TRUE(pass(number, 4)) << "0.6 * 2 + 0.4 * 15 ms is under 10";
  int used = 0;
  for (int number = 0; number < 100; ++number) used += pass(number, 8);
  EXPECT_LE(used, static_cast<int>(CostModel::kRemembered));
  EXPECT_EQ(model.state(), State::kOff);
  EXPECT_THAT(model.estimates().reason, HasSubstr("came too late"));
  // Tried again and again, it takes ever fewer of the passes.
  used = 0;
  for (int number = 0; number < 20'000; ++number) used += pass(number, 8);
  EXPECT_GT(used, 2 * static_cast<int>(CostModel::kEnough));
  EXPECT_LT(used, 600);
}

TEST(CostModelTest, IsSwitchedOffWhereKeepingTakesLongerThanComputing) {
  CostModel model;
  model.SamplesRepeat(true);
  int used = 0;
  for (int pass = 0; pass < 100; ++pass) {
    if (!model.Use()) continue;
    ++used;
    model.Computed(0.001);
    model.Filled(0.002);
  }
  EXPECT_EQ(used, static_cast<int>(CostModel::kEnough));
  EXPECT_THAT(model.estimates().reason, HasSubstr("to keep what it gives 2.00 ms"));
}

TEST(CostModelTest, ThreeEpochsWithoutAHitAreEnough) {
  CostModel model = Measured(0.010);
  model.EpochPassed();
  model.EpochPassed();
  EXPECT_TRUE(model.Use());
  model.EpochPassed();
  EXPECT_FALSE(model.Use());
  EXPECT_THAT(model.estimates().reason, HasSubstr("no pass could be skipped"));
}

TEST(CostModelTest, EpochsWithHitsAreNotFruitless) {
  CostModel model = Measured(0.010);
  for (int epoch = 0; epoch < 5; ++epoch) {
    model.EpochPassed();
    EXPECT_EQ(Skip(&model, 10, 0.002, 0.1), 10);
  }
}

TEST(CostModelTest, EpochsOfFewHitsThatDoNotPayAreFruitless) {
  for (const bool pays : {false, true}) {
    CostModel model = Measured(0.010);
    model.EpochPassed();  // in which entries are written
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (int pass = 0; pass < 100; ++pass) {
        if (pass < 3) continue;
        model.Computed(0.010);
        model.Filled(pays ? 0.0001 : 0.002);
      }
      Skip(&model, 3, 0.002, 1);
      model.EpochPassed();
    }
    EXPECT_EQ(model.Use(), pays);
    if (!pays) {
      EXPECT_THAT(model.estimates().reason, HasSubstr("saved less than asking and keeping took"));
    }
  }
}

TEST(CostModelTest, WhatElseIsSpentIsNotSaved) {
  CostModel model = Measured(0.010);
  model.Spent(2);
  EXPECT_LT(model.estimates().saved_seconds, -2);
}

}  // namespace
}  // namespace egeria::cache

#include "worker/cache/client/cost_model.h"

#include <optional>

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

// Passes before it is known whether samples repeat. Returns how many of them were kept.
int Fill(CostModel* model, int passes, double step, double forward, double write, double behind = 0) {
  int kept = 0;
  double total_behind = 0;
  for (int pass = 0; pass < passes; ++pass) {
    if (!model->Use(step)) continue;
    ++kept;
    model->Computed(forward);
    model->WrittenBehind(total_behind);
    model->Filled(write);
    total_behind += behind;
  }
  return kept;
}

TEST(CostModelTest, KeepsPassesInTwoPercentOfTheTimeWhileNobodyKnowsWhetherSamplesRepeat) {
  CostModel cheap;  // 1 % of the step
  EXPECT_EQ(Fill(&cheap, 1000, 0.1, 0.05, 0.001), 1000);
  EXPECT_EQ(cheap.estimates().state, State::kUnknown);
  CostModel dear;  // 20 %: every tenth
  EXPECT_NEAR(Fill(&dear, 1000, 0.1, 0.05, 0.020), 100, 2);
  CostModel behind;  // others take more than the thread itself
  EXPECT_NEAR(Fill(&behind, 1000, 0.1, 0.05, 0.001, 0.019), 100, 2);
}

TEST(CostModelTest, AStepThatIsHeldUpGivesNoTimeToKeepMore) {
  CostModel model;
  Fill(&model, 100, 0.1, 0.05, 0.020);
  EXPECT_LE(Fill(&model, 1, 3600, 0.05, 0.020) + Fill(&model, 20, 0.1, 0.05, 0.020), 4);
}

TEST(CostModelTest, KeepsNothingThatTakesLongerThanWhatItMaySave) {
  for (const std::optional<bool> likely : {std::optional<bool>(), std::optional<bool>(true)}) {
    CostModel model;
    model.SamplesMayRepeat(likely);
    EXPECT_EQ(Fill(&model, 1000, 10, 0.002, 0.001, 0.002), static_cast<int>(CostModel::kFewWrites));
  }
}

TEST(CostModelTest, KeepsAllWhereSamplesAreLikelyToRepeatAndNothingWhereTheyAreNot) {
  CostModel likely;
  likely.SamplesMayRepeat(true);
  EXPECT_EQ(Fill(&likely, 1000, 0.1, 0.05, 0.020), 1000);
  CostModel unlikely;
  unlikely.SamplesMayRepeat(false);
  EXPECT_EQ(Fill(&unlikely, 1000, 0.1, 0.05, 0.001), 0);
  unlikely.SamplesRepeat(true);  // they do all the same
  EXPECT_EQ(Fill(&unlikely, 10, 0.1, 0.05, 0.001), 10);
}

TEST(CostModelTest, WhatIsKnownEndsTheRisk) {
  CostModel model;
  Fill(&model, 100, 0.1, 0.05, 0.020);
  model.SamplesRepeat(true);
  EXPECT_EQ(Fill(&model, 50, 0.1, 0.05, 0.020), 50) << "all are kept";
  EXPECT_EQ(model.estimates().state, State::kTrying);
  model.SamplesRepeat(false);
  EXPECT_EQ(Fill(&model, 50, 0.1, 0.05, 0.020), 0) << "none is";
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
  EXPECT_THAT(model.estimates().reason, HasSubstr("late and missing samples included"));
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
  EXPECT_THAT(model.estimates().reason, HasSubstr("to keep its result 2.00 ms"));
}

TEST(CostModelTest, WhatOthersSpendOnKeepingCountsToo) {
  CostModel model;
  model.SamplesRepeat(true);
  EXPECT_EQ(Fill(&model, 100, 0, 0.002, 0.001, 0.0015), static_cast<int>(CostModel::kEnough));
  EXPECT_THAT(model.estimates().reason, HasSubstr("to keep its result 2.50 ms"));
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
      EXPECT_THAT(model.estimates().reason, HasSubstr("saved less time than the cache has taken"));
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

#include "worker/accounting/time_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace egeria::worker {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::Pair;

// tests/worker/python/test_time_ledger.py has the arithmetic of whole trainings.
class AccountTest : public ::testing::Test {
 protected:
  void Steps(int count, double seconds, int prefix) {
    for (int i = 0; i < count; ++i) {
      now_ += seconds;
      account_.EndStep(prefix, 0.25 * prefix);
    }
  }

  double now_ = 0;
  TimeLedger account_{[this] { return now_; }};
};

TEST_F(AccountTest, OthersAreToldOfPrefixesWithEnoughStepsOnly) {
  Steps(29 + 1, 1, 0);  // the first one is not known from its beginning
  EXPECT_THAT(account_.totals().seconds_per_step, IsEmpty());
  Steps(1, 1, 0);
  Steps(29, 0.5, 2);
  EXPECT_THAT(account_.totals().seconds_per_step, ElementsAre(Pair(0, 1.0)));
  EXPECT_THAT(account_.SecondsPerStep(), ElementsAre(Pair(0, 1.0), Pair(2, 0.5)));
  EXPECT_THAT(account_.totals().saved_seconds, Optional(DoubleNear(29 * 0.5, 1e-9)));
}

TEST_F(AccountTest, WhatScopesSpendIsNoPartOfAStep) {
  Steps(1, 1, 0);
  for (int i = 0; i < 9; ++i) {
    const TimeLedger::Spending outer(&account_, "hooks");
    now_ += 3;
    const TimeLedger::Spending inner(&account_, "probes");
    now_ += 4;
  }
  Steps(1, 1, 0);
  EXPECT_THAT(account_.SecondsPerStep(), ElementsAre(Pair(0, 1.0)));
  EXPECT_THAT(account_.SpentSeconds(), ElementsAre(Pair("hooks", 27.0), Pair("probes", 36.0)));
  EXPECT_DOUBLE_EQ(account_.totals().total_spent_seconds(), 63);
  EXPECT_DOUBLE_EQ(account_.totals().measuring_seconds(), 36);
}

TEST_F(AccountTest, WhatIsTakenElsewhereIsSpentButNoPartOfAStep) {
  Steps(41, 1, 0);
  account_.SetElsewhere("reference", 0);
  EXPECT_THAT(account_.SpentSeconds(), IsEmpty());
  Steps(40, 0.5, 2);
  account_.SetElsewhere("reference", 3);
  account_.SetElsewhere("reference", 4);
  EXPECT_THAT(account_.SpentSeconds(), ElementsAre(Pair("reference", 4.0)));
  EXPECT_THAT(account_.SecondsPerStep(), ElementsAre(Pair(0, 1.0), Pair(2, 0.5)));
  EXPECT_THAT(account_.NetShare(), Optional(DoubleNear((20.0 - 4) / 80, 1e-9)));
}

TEST_F(AccountTest, WhileNothingHasFrozenTheNetIsWhatWasSpent) {
  EXPECT_FALSE(account_.NetShare().has_value());
  Steps(1, 1, 0);
  EXPECT_FALSE(account_.NetShare().has_value()) << "no step is known from its beginning";
  Steps(40, 1, 0);
  EXPECT_THAT(account_.NetShare(), Optional(0.0));
  account_.Add(spent_on::kProbes, 2);
  EXPECT_THAT(account_.NetShare(), Optional(DoubleNear(-2.0 / 40, 1e-9)));
}

TEST_F(AccountTest, WhatIsAddedDuringAStepIsNoPartOfIt) {
  Steps(1, 1, 0);
  now_ += 0.5;
  account_.Add(spent_on::kGradients, 0.25);
  Steps(1, 0.75, 0);
  EXPECT_THAT(account_.SecondsPerStep(), ElementsAre(Pair(0, 1.0)));
  EXPECT_DOUBLE_EQ(account_.totals().measuring_seconds(), 0.25);
}

TEST_F(AccountTest, ASwitchTakesWhatTheMostExpensiveOneHasTaken) {
  Steps(31, 1, 0);
  EXPECT_EQ(account_.SwitchSeconds(), 0);
  account_.SetCompilation(20);
  EXPECT_EQ(account_.SwitchSeconds(), 20) << "as long as nothing else is known";
  const auto switch_in = [&](double switching, double step, int prefix) {
    account_.Begin();
    now_ += switching;
    account_.End(spent_on::kSwitches);
    account_.Disturb();
    Steps(1, step, prefix);
    Steps(40, 0.5, prefix);
  };
  switch_in(0.25, 3.5, 1);
  EXPECT_DOUBLE_EQ(account_.SwitchSeconds(), 3.25) << "its own time, and what its step took over others";
  switch_in(0.25, 0.5, 2);
  EXPECT_DOUBLE_EQ(account_.SwitchSeconds(), 3.25) << "this one was compiled before";
  switch_in(1, 6, 3);
  EXPECT_DOUBLE_EQ(account_.totals().switch_seconds, 6.5);
}

TEST_F(AccountTest, AMedianOfTwoIsTheirMean) {
  Steps(1, 1, 0);
  Steps(1, 1, 0);
  Steps(1, 4, 0);  // under three times 2.5, and so no outlier
  EXPECT_THAT(account_.SecondsPerStep(), ElementsAre(Pair(0, 2.5)));
  Steps(1, 1, 0);
  EXPECT_THAT(account_.SecondsPerStep(), ElementsAre(Pair(0, 1.0)));
}

}  // namespace
}  // namespace egeria::worker

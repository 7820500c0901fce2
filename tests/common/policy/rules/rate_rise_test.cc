#include "common/policy/rules/rate_rise.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;

TEST(RateRise, UnfreezesTheFirstModuleWhoseRateHasRisen) {
  RateRise rule(1.1, 4);
  rule.OnPrefix(0, 1, 0.1);
  rule.OnPrefix(1, 3, 0.05);
  EXPECT_FALSE(rule.Observe(0.055, 3, 0)) << "exactly 1.1 times";
  const auto proposal = rule.Observe(0.06, 3, 0);
  ASSERT_TRUE(proposal);
  EXPECT_EQ(proposal->prefix, 1) << "module 0 froze at a higher rate";
  EXPECT_THAT(proposal->reason, HasSubstr("0.06 is over 1.1 times the 0.05 at which module 1 froze"));
  EXPECT_EQ(rule.Observe(0.2, 3, 0)->prefix, 0);
}

TEST(RateRise, TakesTheFirstRateForThatOfAFreezeOfBefore) {
  RateRise rule(1.1, 4);
  rule.OnPrefix(0, 2, std::nullopt);
  EXPECT_FALSE(rule.Observe(0.1, 2, 0));
  EXPECT_TRUE(rule.Observe(0.2, 2, 0));
}

TEST(RateRise, LeavesModulesWithoutARateAlone) {
  RateRise rule(1.1, 4);
  rule.OnPrefix(0, 2, 0.1);
  EXPECT_FALSE(rule.Observe(0.2, 2, 2));
}

TEST(RateRise, ForgetsWhatHasUnfrozen) {
  RateRise rule(1.1, 4);
  rule.OnPrefix(0, 2, 0.1);
  rule.OnPrefix(2, 0, 0.1);
  rule.OnPrefix(0, 2, 0.2);
  EXPECT_FALSE(rule.Observe(0.2, 2, 0));
}

TEST(RateRise, IsSwitchedOffByAFactorOfZero) {
  RateRise rule(0, 4);
  rule.OnPrefix(0, 2, 0.1);
  EXPECT_FALSE(rule.Observe(100, 2, 0));
}

}  // namespace
}  // namespace egeria::policy

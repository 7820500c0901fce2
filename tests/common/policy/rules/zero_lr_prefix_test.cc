#include "common/policy/rules/zero_lr_prefix.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;

TEST(ZeroLrPrefix, FreezesWhatHasNoRate) {
  ZeroLrPrefix rule(4);
  EXPECT_FALSE(rule.Observe(0, 0));
  const auto proposal = rule.Observe(2, 0);
  ASSERT_TRUE(proposal);
  EXPECT_EQ(proposal->prefix, 2);
  EXPECT_THAT(proposal->reason, HasSubstr("modules 0 to 1: their learning rates are 0"));
  EXPECT_EQ(rule.prefix(), 2);
}

TEST(ZeroLrPrefix, NeverFreezesTheLastModule) {
  ZeroLrPrefix rule(4);
  EXPECT_EQ(rule.Observe(4, 0)->prefix, 3);
}

TEST(ZeroLrPrefix, ProposesOnceForEachChange) {
  ZeroLrPrefix rule(4);
  EXPECT_TRUE(rule.Observe(2, 0));
  EXPECT_FALSE(rule.Observe(2, 0)) << "an operator has unfrozen";
  EXPECT_TRUE(rule.Observe(3, 0));
}

TEST(ZeroLrPrefix, UnfreezesWhatHasARateAgain) {
  ZeroLrPrefix rule(4);
  rule.Observe(3, 0);
  const auto proposal = rule.Observe(1, 3);
  ASSERT_TRUE(proposal);
  EXPECT_EQ(proposal->prefix, 1);
  EXPECT_THAT(proposal->reason, HasSubstr("learning rate of module 1 is not 0 any more"));
  EXPECT_FALSE(rule.Observe(0, 0)) << "nothing is frozen";
}

TEST(ZeroLrPrefix, LeavesAloneWhatIsFrozenDeeperForOtherReasons) {
  ZeroLrPrefix rule(6);
  EXPECT_FALSE(rule.Observe(2, 4));
  EXPECT_EQ(rule.Observe(1, 4)->prefix, 1) << "module 1 may not stay, and so nothing behind it";
}

TEST(ZeroLrPrefix, BeginsAnewWhereTrainingGoesBack) {
  ZeroLrPrefix rule(4);
  rule.Observe(2, 0);
  rule.Forget();
  EXPECT_TRUE(rule.Observe(2, 0));
}

}  // namespace
}  // namespace egeria::policy

#include "worker/planning/policy_options.h"

#include "common/policy/constants.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace egeria::worker {
namespace {

using ::testing::HasSubstr;

TEST(PolicyOptions, RefuseJsonOfAnotherTypeOrOutOfRange) {
  EXPECT_FALSE(Misfit("auto", "start", "0.5"));
  EXPECT_FALSE(Misfit("auto", "start", "1"));
  EXPECT_THAT(Misfit("auto", "start", "1.1").value_or(""), HasSubstr("a number, 0 to 1"));
  for (const char* json : {"true", "\"0.5\"", "NaN", "null", "[0.5]"}) EXPECT_TRUE(Misfit("auto", "start", json));
  EXPECT_TRUE(Misfit("auto", "max_modules", "1.5"));
  EXPECT_TRUE(Misfit("auto", "max_modules", "0"));
  EXPECT_TRUE(Misfit("auto", "threshold", "1"));
  EXPECT_FALSE(Misfit("auto", "unfreeze_rise", "0"));
  EXPECT_TRUE(Misfit("auto", "reprobe_every", "0.05"));
  EXPECT_THAT(Misfit("auto", "unfreeze_rise", "0.5").value_or(""), HasSubstr("over 1 and at most 1000000, or 0 for "
                                                                             "never"));
  EXPECT_TRUE(Misfit("staged", "deepest_prefix", "0")) << "what is worked out cannot be given as 0";
  EXPECT_TRUE(Misfit("staged", "area", "1"));
  EXPECT_FALSE(Misfit("plasticity", "unfreeze_steps", "[5, 9]"));
  EXPECT_TRUE(Misfit("plasticity", "unfreeze_steps", "[-1]"));
  EXPECT_TRUE(Misfit("plasticity", "unfreeze_steps", "5"));
  EXPECT_FALSE(Misfit("schedule", "entries", R"([{"fraction":0.5,"frozen_prefix":2}])"));
  EXPECT_TRUE(Misfit("schedule", "entries", "[]"));
  EXPECT_TRUE(Misfit("schedule", "entries", R"([{"fraction":1.5,"frozen_prefix":2}])"));
}

TEST(PolicyOptions, AreDescribedAsJson) {
  const auto policies = nlohmann::json::parse(DescribePolicies());
  ASSERT_EQ(policies.size(), policy::PolicyKinds().size());
  for (const auto& policy : policies) {
    if (policy["name"] != "auto") continue;
    EXPECT_EQ(policy["constants"][0]["name"], "start");
    EXPECT_EQ(policy["constants"][0]["default"], "0.82");
    EXPECT_EQ(policy["constants"][0]["range"], "0 to 1");
    EXPECT_EQ(policy["constants"][0]["unit"], "of the steps");
  }
}

}  // namespace
}  // namespace egeria::worker

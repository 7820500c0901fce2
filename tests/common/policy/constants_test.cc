#include "common/policy/constants.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace egeria::policy {
namespace {

using ::testing::HasSubstr;

std::optional<std::string> MisfitOf(const char* policy, const char* name, const char* json) {
  return Misfit(*FindConstant(*FindKind(policy), name), json);
}

TEST(Constants, OfEveryPolicyHaveAName) {
  std::set<std::string> policies;
  for (const PolicyKind& kind : PolicyKinds()) {
    EXPECT_TRUE(policies.insert(kind.name).second) << kind.name;
    EXPECT_EQ(KindOf(kind.defaults).name, kind.name) << "kinds are in the order of PolicyConfig's alternatives";
    std::set<std::string> names;
    for (const Constant& constant : kind.constants) {
      EXPECT_TRUE(names.insert(constant.name).second) << kind.name << "." << constant.name;
      EXPECT_NE(std::string(constant.sentence), "");
    }
  }
}

TEST(Constants, HaveDefaultsInTheirRanges) {
  for (const PolicyKind& kind : PolicyKinds()) EXPECT_TRUE(CheckConstants(kind.defaults).ok()) << kind.name;
}

TEST(Constants, GiveBackWhatIsSet) {
  const Constant& start = *FindConstant(*FindKind("auto"), "start");
  PolicyConfig config = AutoConfig{};
  start.set(config, 0.5);
  EXPECT_EQ(std::get<AutoConfig>(config).start, 0.5);
  EXPECT_EQ(std::get<double>(start.get(config)), 0.5);
}

TEST(Constants, RefuseJsonOfAnotherTypeOrOutOfRange) {
  EXPECT_FALSE(MisfitOf("auto", "start", "0.5"));
  EXPECT_FALSE(MisfitOf("auto", "start", "1"));
  EXPECT_THAT(MisfitOf("auto", "start", "1.1").value_or(""), HasSubstr("a number, 0 to 1"));
  for (const char* json : {"true", "\"0.5\"", "NaN", "null", "[0.5]"}) EXPECT_TRUE(MisfitOf("auto", "start", json));
  EXPECT_TRUE(MisfitOf("auto", "max_modules", "1.5"));
  EXPECT_TRUE(MisfitOf("auto", "max_modules", "0"));
  EXPECT_TRUE(MisfitOf("auto", "threshold", "1"));
  EXPECT_FALSE(MisfitOf("auto", "reprobe_every", "0"));
  EXPECT_THAT(MisfitOf("auto", "unfreeze_rise", "0.5").value_or(""), HasSubstr("over 1 and at most 1000000, or 0 for "
                                                                               "never"));
  EXPECT_TRUE(MisfitOf("staged", "deepest_prefix", "0")) << "what is worked out cannot be given as 0";
  EXPECT_TRUE(MisfitOf("staged", "area", "1"));
  EXPECT_FALSE(MisfitOf("plasticity", "unfreeze_steps", "[5, 9]"));
  EXPECT_TRUE(MisfitOf("plasticity", "unfreeze_steps", "[-1]"));
  EXPECT_TRUE(MisfitOf("plasticity", "unfreeze_steps", "5"));
  EXPECT_FALSE(MisfitOf("schedule", "entries", R"([{"fraction":0.5,"frozen_prefix":2}])"));
  EXPECT_TRUE(MisfitOf("schedule", "entries", "[]"));
  EXPECT_TRUE(MisfitOf("schedule", "entries", R"([{"fraction":1.5,"frozen_prefix":2}])"));
}

TEST(Constants, AreDescribedAsJsonAndInWords) {
  const auto policies = nlohmann::json::parse(DescribePolicies());
  ASSERT_EQ(policies.size(), PolicyKinds().size());
  for (const auto& policy : policies) {
    EXPECT_THAT(PolicyHelp(), HasSubstr(policy["name"].get<std::string>() + ": "));
    if (policy["name"] != "auto") continue;
    EXPECT_EQ(policy["constants"][0]["name"], "start");
    EXPECT_EQ(policy["constants"][0]["default"], "0.82");
    EXPECT_EQ(policy["constants"][0]["range"], "0 to 1");
    EXPECT_EQ(policy["constants"][0]["unit"], "of the steps");
  }
}

}  // namespace
}  // namespace egeria::policy

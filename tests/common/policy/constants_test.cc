#include "common/policy/constants.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

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

}  // namespace
}  // namespace egeria::policy

#include "worker/trainer/agreed_options.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

namespace egeria::trainer {
namespace {

using ::egeria::testing::RunRanks;

Options Resolved() {
  Options options;
  options.task = "digits";
  options.data = "digits.bin";
  options.controller = "unix:/nowhere/controller.sock";
  options.window = 4;
  options.policy = "plasticity";
  EXPECT_TRUE(ResolveOptions(&options).ok());
  return options;
}

// The options of two ranks after they have agreed.
std::vector<Options> Agreed(const Options& first, const Options& second) {
  std::vector<Options> options = {first, second};
  RunRanks(2, [&options](const worker::GroupMember& member) {
    const absl::Status status = AgreeOnOptions(member, &options[member.rank]);
    EXPECT_TRUE(status.ok()) << status;
  });
  return options;
}

TEST(AgreeOnOptions, ARankTakesRankZerosOptionsAndKeepsItsOwnFiles) {
  Options other = Resolved();
  other.data = "/elsewhere/digits.bin";
  other.window.reset();
  other.tolerance = 0.5;
  other.policy = "none";
  other.observe = true;
  other.seed = 5;
  other.milestones = {0.25};
  other.module_patterns = {"^stem", "^(?!stem).*"};
  other.budget = 0.2;
  other.epochs = 7;
  other.freeze_at = {"0.5:2"};
  other.controller = "unix:/another/controller.sock";
  const std::vector<Options> agreed = Agreed(Resolved(), other);
  const Options& taken = agreed[1];
  EXPECT_EQ(taken.window, std::optional<int>(4));
  EXPECT_EQ(taken.tolerance, std::nullopt);
  EXPECT_EQ(taken.policy, "plasticity");
  EXPECT_FALSE(taken.observe);
  EXPECT_EQ(taken.seed, 1u);
  EXPECT_EQ(taken.milestones, Resolved().milestones);
  EXPECT_TRUE(taken.module_patterns.empty());
  EXPECT_EQ(taken.budget, 0);
  EXPECT_EQ(taken.epochs, Resolved().epochs);
  EXPECT_TRUE(taken.freeze_at.empty());
  EXPECT_EQ(taken.controller, Resolved().controller) << "on the same node";
  EXPECT_EQ(taken.data, "/elsewhere/digits.bin");
  EXPECT_EQ(agreed[0].window, std::optional<int>(4));
}

TEST(AgreeOnOptions, AllTrainPlainlyWhereOneHasNoController) {
  for (const bool first : {true, false}) {
    Options alone = Resolved();
    alone.controller.clear();
    alone.policy = "none";
    const std::vector<Options> agreed = first ? Agreed(alone, Resolved()) : Agreed(Resolved(), alone);
    for (const Options& options : agreed) {
      EXPECT_EQ(options.controller, "");
      EXPECT_EQ(options.policy, "none");
      EXPECT_TRUE(BuildPolicyJson(options).ok());
    }
  }
}

TEST(AgreeOnOptions, AllTrainPlainlyWherePlansDifferAndNotWhereOnlyTheirFilesDo) {
  const testing::TempFolder folder;
  std::ofstream(folder / "a.json") << R"([{"step": 3, "frozen_prefix": 1}])";
  std::ofstream(folder / "b.json") << R"([ {"frozen_prefix": 1, "step": 3} ])";
  std::ofstream(folder / "c.json") << R"([{"step": 4, "frozen_prefix": 1}])";
  Options options = Resolved();
  options.controller.clear();
  options.window.reset();
  options.policy = "none";
  const auto with = [&options, &folder](const std::string& name) {
    Options made = options;
    made.plans = folder / name;
    return made;
  };
  for (const Options& same : Agreed(with("a.json"), with("b.json"))) EXPECT_NE(same.plans, "");
  for (const Options& other : Agreed(with("a.json"), with("c.json"))) EXPECT_EQ(other.plans, "");
}

}  // namespace
}  // namespace egeria::trainer

#include "tests/controller/replay/rule_oracle.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/policy/policy_config.h"
#include "controller/replay/replay.h"
#include "gtest/gtest.h"
#include "tests/controller/replay/random_series.h"

namespace egeria::controller {
namespace {

using policy::Action;
using policy::Decision;
using policy::JobShape;
using policy::MakePolicy;
using policy::Observation;
using policy::PlasticityConfig;
using policy::Policy;

constexpr uint64_t kCases = 6000;

std::unique_ptr<Policy> MakeFor(const oracle::Rule& rule) {
  PlasticityConfig config;
  config.interval_steps = rule.n;
  config.window = rule.w;
  config.tolerance = rule.tolerance;
  config.signed_slope = rule.is_signed;
  config.bootstrap = rule.bootstrap;
  config.learning_rate_drop = rule.drop;
  config.learning_rate_rise = rule.rise;
  config.unfreeze_steps.assign(rule.unfreeze_steps.begin(), rule.unfreeze_steps.end());
  return MakePolicy(config, JobShape{rule.modules, 0, rule.losses_reported, rule.first_step}).value();
}

std::vector<oracle::Verdict> Verdicts(const std::vector<Decision>& decisions) {
  std::vector<oracle::Verdict> verdicts;
  for (const Decision& decision : decisions) {
    verdicts.push_back({decision.step, decision.action == Action::kFreeze, decision.frozen_prefix});
  }
  return verdicts;
}

std::vector<Recorded> ParseAll(const std::vector<std::string>& lines) {
  RecordingParser parser;
  std::vector<Recorded> recording;
  for (const std::string& line : lines) {
    absl::StatusOr<std::optional<Recorded>> recorded = parser.ParseLine(line);
    EXPECT_TRUE(recorded.ok()) << recorded.status();
    if (recorded.ok() && *recorded) recording.push_back(**recorded);
  }
  return recording;
}

TEST(PlasticityRule, DecidesAsTheSecondImplementationOnThousandsOfRandomSeries) {
  int64_t freezes = 0, unfreezes = 0, halvings = 0, silent = 0, with_signed = 0, blind = 0;
  for (uint64_t seed = 1; seed <= kCases; ++seed) {
    const oracle::Case test = oracle::RandomCase(seed);
    const std::vector<oracle::Verdict> expected = oracle::Decide(test.rule, test.lines);
    std::vector<std::string> text;
    for (const oracle::Line& line : test.lines) text.push_back(oracle::Json(line));
    const std::unique_ptr<Policy> policy = MakeFor(test.rule);
    const std::vector<Decision> decisions = Replay(ParseAll(text), test.rule.modules, *policy).value();
    ASSERT_EQ(oracle::Text(Verdicts(decisions)), oracle::Text(expected)) << "seed " << seed;

    silent += expected.empty();
    with_signed += test.rule.is_signed && !expected.empty();
    blind += test.rule.bootstrap && !test.rule.losses_reported && !expected.empty();
    for (const Decision& decision : decisions) {
      (decision.action == Action::kFreeze ? freezes : unfreezes) += 1;
      halvings += decision.reason.find("window") != std::string::npos;
    }
  }
  // The series must exercise the rule, or agreement means nothing.
  RecordProperty("freezes", std::to_string(freezes));
  std::printf(
      "%llu series: %lld freezes, %lld unfreezes (%lld by a drop), %lld series without a decision, "
      "%lld signed ones with, %lld without losses with\n",
      static_cast<unsigned long long>(kCases), static_cast<long long>(freezes), static_cast<long long>(unfreezes),
      static_cast<long long>(halvings), static_cast<long long>(silent), static_cast<long long>(with_signed),
      static_cast<long long>(blind));
  EXPECT_GT(freezes, static_cast<int64_t>(kCases));
  EXPECT_GT(unfreezes, static_cast<int64_t>(kCases) / 10);
  EXPECT_GT(halvings, static_cast<int64_t>(kCases) / 20);
  EXPECT_GT(with_signed, static_cast<int64_t>(kCases) / 20);
  EXPECT_GT(silent, static_cast<int64_t>(kCases) / 100);
  EXPECT_GT(blind, static_cast<int64_t>(kCases) / 20);
}

// A controller writes down one observation after the other; here the text is replayed.
TEST(PlasticityRule, DecidesTheSameWhenItsExportIsReplayed) {
  int64_t decided = 0, adoptions = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    const oracle::Case test = oracle::RandomCase(seed);
    const std::unique_ptr<Policy> live = MakeFor(test.rule);
    std::vector<std::string> exported;
    std::vector<Decision> decisions;
    for (size_t i = 0; i < test.lines.size(); ++i) {
      const oracle::Line& line = test.lines[i];
      if (seed % 3 == 0 && i % 71 == 70) {
        const int prefix = static_cast<int>(i) % test.rule.modules;
        live->Adopt(line.step, prefix);
        exported.push_back(FormatAdoption(line.step, prefix));
        ++adoptions;
      }
      Observation observation;
      observation.step = line.step;
      observation.loss = live->wants_loss() ? line.loss : std::nullopt;
      observation.learning_rate = line.lr;
      observation.module = live->frozen_prefix();
      observation.plasticity =
          line.all.empty() ? line.plasticity : line.all[static_cast<size_t>(live->frozen_prefix())];
      exported.push_back(FormatObservation(observation));
      if (std::optional<Decision> decision = live->Observe(observation)) decisions.push_back(*decision);
    }
    const std::unique_ptr<Policy> fresh = MakeFor(test.rule);
    const std::vector<Decision> replayed = Replay(ParseAll(exported), test.rule.modules, *fresh).value();
    ASSERT_EQ(replayed.size(), decisions.size()) << "seed " << seed;
    for (size_t i = 0; i < decisions.size(); ++i) {
      ASSERT_EQ(FormatDecision(replayed[i]), FormatDecision(decisions[i])) << "seed " << seed;
    }
    decided += static_cast<int64_t>(decisions.size());
  }
  EXPECT_GT(decided, 500);
  EXPECT_GT(adoptions, 50);
}

}  // namespace
}  // namespace egeria::controller

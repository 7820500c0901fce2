#include "controller/replay/replay.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/policy/policy_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/policy/simulated_training.h"

namespace egeria::controller {
namespace {

using policy::Action;
using policy::Decision;
using policy::GradientReading;
using policy::JobShape;
using policy::MakePolicy;
using policy::Observation;
using policy::PlasticityConfig;
using policy::Policy;
using policy::ScheduleConfig;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The error of the first line that has one.
std::string ErrorOf(const std::vector<std::string>& lines) {
  RecordingParser parser;
  for (const std::string& line : lines) {
    const auto recorded = parser.ParseLine(line);
    if (recorded.ok()) continue;
    EXPECT_EQ(recorded.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(recorded.status().message());
  }
  return "";
}

Recorded Parse(const std::string& line) {
  RecordingParser parser;
  const auto recorded = parser.ParseLine(line);
  EXPECT_TRUE(recorded.ok()) << recorded.status();
  return recorded.ok() ? recorded->value_or(Recorded()) : Recorded();
}

TEST(Recording, HoldsAnyOfItsNumbers) {
  const Recorded all = Parse(R"({"step":120,"module":2,"plasticity":3.5e-3,"loss":1.5,"lr":0.1,"zero_lr_prefix":1})");
  EXPECT_EQ(all.observation.zero_lr_prefix, 1);
  EXPECT_EQ(Parse(FormatObservation(all.observation)).observation.zero_lr_prefix, 1);
  EXPECT_EQ(all.line, 1);
  EXPECT_EQ(all.observation.step, 120);
  EXPECT_EQ(all.observation.module, 2);
  EXPECT_EQ(all.observation.plasticity, 3.5e-3);
  EXPECT_EQ(all.observation.loss, 1.5);
  EXPECT_EQ(all.observation.learning_rate, 0.1);
  const Recorded none = Parse(R"( {"step":7.0,"module":null,"plasticity":null,"loss":null} )"
                              "\r");
  EXPECT_EQ(none.observation.step, 7);
  EXPECT_FALSE(none.observation.module || none.observation.plasticity || none.observation.loss ||
               none.observation.learning_rate || none.adopted_prefix);
  const Recorded array = Parse(R"({"step":0,"plasticity":[1,null,2.5]})");
  EXPECT_THAT(array.plasticity_by_module, ElementsAre(1.0, std::nullopt, 2.5));
}

TEST(Recording, SkipsEmptyLinesButCountsThem) {
  EXPECT_THAT(ErrorOf({"", "  ", R"({"step":1})", "", "x"}), HasSubstr("line 5: not JSON from character 1 on"));
}

TEST(Recording, SaysWhichLineIsWrongAndWhatToDo) {
  EXPECT_THAT(ErrorOf({R"({"loss":1})"}), HasSubstr("[BAD_RECORDING] line 1: no \"step\": every line needs one"));
  EXPECT_THAT(ErrorOf({R"({"step":1.5})"}), HasSubstr("\"step\" is 1.5: write a whole number"));
  EXPECT_THAT(ErrorOf({R"({"step":-1})"}), HasSubstr("\"step\" is -1: write a whole number"));
  EXPECT_THAT(ErrorOf({R"({"step":9223372036854775808})"}), HasSubstr("write a whole number"));
  EXPECT_THAT(ErrorOf({R"({"step":1e300})"}), HasSubstr("write a whole number"));
  EXPECT_THAT(ErrorOf({R"({"step":"1"})"}), HasSubstr("write a whole number"));
  EXPECT_THAT(ErrorOf({R"({"step":1,"module":-1})"}), HasSubstr("\"module\" is -1"));
  EXPECT_THAT(ErrorOf({R"({"step":1,"module":3000000000})"}), HasSubstr("\"module\" is 3000000000"));
  EXPECT_THAT(ErrorOf({R"({"step":1,"lr":"fast"})"}), HasSubstr("\"lr\" holds \"fast\": write a number, or null"));
  EXPECT_THAT(ErrorOf({R"({"step":1,"loss":true})"}), HasSubstr("\"loss\" holds true"));
  EXPECT_THAT(ErrorOf({R"({"step":1,"plasticity":[0.1,"x"]})"}), HasSubstr("\"plasticity\" holds \"x\""));
  EXPECT_THAT(ErrorOf({R"({"step":1,"plasticity":[]})"}), HasSubstr("empty array"));
  EXPECT_THAT(ErrorOf({R"({"step":1,"plasticity":NaN})"}), HasSubstr("null for a missing number"));
  EXPECT_THAT(ErrorOf({R"({"step":1,"loss":1e999})"}), HasSubstr("out of range"));
  EXPECT_THAT(ErrorOf({"[1,2]"}), HasSubstr("a JSON array: write an object"));
  EXPECT_THAT(ErrorOf({std::string(100'000, '[')}), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf({"{\"step\":1,\"loss\":\"\xff\"}"}), HasSubstr("not JSON"));
}

TEST(Recording, RefusesStepsThatDecreaseUnlessAPrefixIsAdopted) {
  EXPECT_THAT(ErrorOf({R"({"step":5})", R"({"step":5})", R"({"step":4})"}),
              HasSubstr("line 3: step 4 comes after step 5: sort the lines by step"));
  EXPECT_EQ(ErrorOf({R"({"step":5})", R"({"step":4,"adopt":1})", R"({"step":4})"}), "");
}

TEST(Recording, RefusesArraysOfDifferentLengths) {
  EXPECT_THAT(ErrorOf({R"({"step":5,"plasticity":[1,2]})", R"({"step":6,"plasticity":[1]})"}),
              HasSubstr("line 2: \"plasticity\" has 1 values, but 2 in a line before"));
}

TEST(Recording, CollectsKeysThatItDoesNotKnow) {
  RecordingParser parser;
  ASSERT_TRUE(parser.ParseLine(R"({"step":1,"plastcity":0.1,"plasticity":[1,2,3]})").ok());
  EXPECT_THAT(parser.unknown_keys(), ElementsAre("plastcity"));
  EXPECT_EQ(parser.array_length(), 3);
}

TEST(Recording, OfAnObservationIsReadBackExactly) {
  Observation observation{
      .step = 9007199254740993, .module = 3, .plasticity = 0.1 * 3, .loss = 5e-324, .learning_rate = 1e-3 / 7};
  const Recorded read = Parse(FormatObservation(observation));
  EXPECT_EQ(read.observation.step, observation.step);
  EXPECT_EQ(read.observation.module, observation.module);
  EXPECT_EQ(read.observation.plasticity, observation.plasticity);
  EXPECT_EQ(read.observation.loss, observation.loss);
  EXPECT_EQ(read.observation.learning_rate, observation.learning_rate);
  EXPECT_EQ(FormatObservation({.step = 2, .module = 0, .plasticity = 0.5, .learning_rate = 1}),
            R"({"step":2,"module":0,"plasticity":0.5,"lr":1.0})");
  EXPECT_EQ(FormatObservation({.step = 2, .loss = std::numeric_limits<double>::quiet_NaN()}), R"({"step":2})");
  EXPECT_EQ(Parse(FormatAdoption(4, 2)).adopted_prefix, 2);
}

TEST(Recording, OfGradientsIsReadBackExactly) {
  Observation observation{.step = 12};
  observation.gradients = GradientReading{11, 1, 4, {0.1 * 3, 1e-300}, {5e-324, 2}, 96, {-0.5, 1e-300}};
  const GradientReading read = Parse(FormatObservation(observation)).observation.gradients.value();
  EXPECT_EQ(read.step, 11);
  EXPECT_EQ(read.first_module, 1);
  EXPECT_EQ(read.parts, 4);
  EXPECT_EQ(read.samples, 96);
  EXPECT_THAT(read.mean_of_squares, ElementsAre(0.1 * 3, 1e-300));
  EXPECT_THAT(read.square_of_mean, ElementsAre(5e-324, 2));
  EXPECT_THAT(read.progress, ElementsAre(-0.5, 1e-300));
  EXPECT_EQ(Parse(R"({"step":7,"gradients":{"parts":2,"mean_of_squares":[1],"square_of_mean":[1]}})")
                .observation.gradients->step,
            7);
}

TEST(Recording, OfAnAccountIsReadBackExactly) {
  Observation observation{.step = 12};
  observation.account = {-0.1 * 3, 2, 0.3, 0.2, 4, 0.7};
  EXPECT_EQ(Parse(FormatObservation(observation)).observation.account, observation.account);
}

TEST(Recording, SaysWhatIsWrongWithGradients) {
  EXPECT_THAT(ErrorOf({R"({"step":1,"gradients":3})"}), HasSubstr("\"gradients\" is no object"));
  EXPECT_THAT(ErrorOf({R"({"step":1,"gradients":{"mean_of_squares":[1],"square_of_mean":[1,2]}})"}),
              HasSubstr("one number a module each"));
  EXPECT_THAT(ErrorOf({R"({"step":1,"gradients":{"mean_of_squares":[-1],"square_of_mean":[1]}})"}),
              HasSubstr("\"mean_of_squares\" is no array of numbers from 0 on"));
  EXPECT_THAT(ErrorOf({R"({"step":1,"gradients":{"mean_of_squares":"x","square_of_mean":[1]}})"}),
              HasSubstr("\"mean_of_squares\" is no array"));
  EXPECT_THAT(
      ErrorOf({R"({"step":1,"gradients":{"parts":2,"mean_of_squares":[1],"square_of_mean":[1],"progress":[1,2]}})"}),
      HasSubstr("\"progress\" needs one number a module"));
  EXPECT_THAT(ErrorOf({R"({"step":1,"gradients":{"parts":0,"mean_of_squares":[1],"square_of_mean":[1]}})"}),
              HasSubstr("\"parts\" from 1 on"));
  EXPECT_THAT(ErrorOf({R"({"step":1,"gradients":{"first_module":-1,"mean_of_squares":[1],"square_of_mean":[1]}})"}),
              HasSubstr("\"first_module\" is -1"));
}

TEST(Recording, TellsOfItsJob) {
  JobShape shape{3, 900, false, 5, 2, {0.25, 0.5, 0.125}, {1, 2, 3}, {0.1, 0}};
  RecordingParser parser;
  EXPECT_EQ(parser.ParseLine(FormatJob(shape)).value(), std::nullopt);
  const JobShape read = parser.job().value();
  EXPECT_EQ(read.modules, 3);
  EXPECT_EQ(read.total_steps, 900);
  EXPECT_FALSE(read.losses_reported);
  EXPECT_EQ(read.first_step, 5);
  EXPECT_EQ(read.ranks, 2);
  EXPECT_EQ(read.step_shares, shape.step_shares);
  EXPECT_EQ(read.parameter_counts, shape.parameter_counts);
  EXPECT_EQ(read.planned_learning_rates, shape.planned_learning_rates);
  EXPECT_THAT(ErrorOf({R"({"job":[]})"}), HasSubstr("\"job\" is no object"));
  EXPECT_THAT(ErrorOf({R"({"job":{"modules":-1}})"}), HasSubstr("\"modules\" is -1"));
  EXPECT_THAT(ErrorOf({R"({"job":{"step_shares":[null]}})"}), HasSubstr("\"step_shares\" is no array"));
}

TEST(Recording, OfADecisionIsOneObject) {
  EXPECT_EQ(FormatDecision({30, Action::kUnfreeze, 0, "a \"reason\""}),
            R"({"step":30,"action":"unfreeze","frozen_prefix":0,"reason":"a \"reason\""})");
}

absl::StatusOr<std::vector<Decision>> ReplayLines(const std::vector<std::string>& lines, int modules) {
  RecordingParser parser;
  std::vector<Recorded> recording;
  for (const std::string& line : lines) recording.push_back(parser.ParseLine(line).value().value());
  PlasticityConfig config;
  config.window = 3;
  config.bootstrap = false;
  const std::unique_ptr<Policy> policy = MakePolicy(config, JobShape{modules, 0}).value();
  return Replay(recording, modules, *policy);
}

TEST(Replay, OfNothingDecidesNothing) { EXPECT_TRUE(ReplayLines({}, 2).value().empty()); }

TEST(Replay, RefusesModulesThatTheJobDoesNotHave) {
  EXPECT_THAT(std::string(ReplayLines({R"({"step":1,"module":2})"}, 2).status().message()),
              HasSubstr("[BAD_RECORDING] line 1: module 2, but the job has modules 0 to 1"));
  EXPECT_THAT(std::string(ReplayLines({R"({"step":1,"plasticity":[1,2,3]})"}, 2).status().message()),
              HasSubstr("\"plasticity\" has 3 values, but the job has 2 modules"));
  EXPECT_THAT(std::string(ReplayLines({R"({"step":1,"adopt":2})"}, 2).status().message()),
              HasSubstr("at most 1 of 2 modules can be frozen"));
}

TEST(Replay, RefusesGradientsOfOtherModules) {
  EXPECT_THAT(std::string(ReplayLines({R"({"step":1,"gradients":{"mean_of_squares":[1],"square_of_mean":[1]}})"}, 2)
                              .status()
                              .message()),
              HasSubstr("[BAD_RECORDING] line 1: \"gradients\" is of 1 modules"));
}

TEST(Replay, TakesTheFrontmostValueOfAnArrayAlsoInTheLineThatUnfreezes) {
  std::vector<std::string> lines;
  for (int i = 0; i < 7; ++i) {
    const std::string number = std::to_string(i);
    lines.push_back("{\"step\":" + number + ",\"lr\":1,\"plasticity\":[0.5," + number + ",0]}");
  }
  // Module 0 froze at the seventh reading; this line unfreezes it, and is the first of the next seven.
  lines.push_back(R"({"step":7,"lr":0.1,"plasticity":[0.5,7,0]})");
  for (int i = 8; i < 14; ++i) lines.push_back("{\"step\":" + std::to_string(i) + ",\"plasticity\":[0.5,1,null]}");
  const std::vector<Decision> decisions = ReplayLines(lines, 3).value();
  ASSERT_EQ(decisions.size(), 3u);
  EXPECT_EQ(decisions[0].step, 6);
  EXPECT_EQ(decisions[0].frozen_prefix, 1);
  EXPECT_EQ(decisions[1].step, 7);
  EXPECT_EQ(decisions[1].action, Action::kUnfreeze);
  EXPECT_EQ(decisions[2].step, 13);
}

TEST(Replay, AnAdoptionAloneIsNoObservation) {
  RecordingParser parser;
  std::vector<Recorded> recording;
  for (const char* line : {R"({"step":500,"adopt":1})", R"({"step":501,"lr":0.1})"}) {
    recording.push_back(parser.ParseLine(line).value().value());
  }
  ScheduleConfig config;
  config.entries = {{0.5, 2}};
  const std::unique_ptr<Policy> policy = MakePolicy(config, JobShape{3, 1'000}).value();
  const std::vector<Decision> decisions = Replay(recording, 3, *policy).value();
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(decisions[0].step, 501);
}

TEST(Replay, AdoptsWhatSomebodyElseFroze) {
  std::vector<std::string> lines = {R"({"step":1,"adopt":1})"};
  for (int i = 1; i <= 7; ++i) {
    lines.push_back("{\"step\":" + std::to_string(i) + ",\"module\":1,\"plasticity\":0}");
  }
  const std::vector<Decision> decisions = ReplayLines(lines, 3).value();
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(decisions[0].frozen_prefix, 2);
}

TEST(Replay, OfWhatAPolicySawDecidesTheSame) {
  policy::SimulatedTraining training = policy::TrainingOf(0);
  training.snr = [](int module, int64_t step) { return step < 2000 || module == 3 ? 0.12 : 0.01; };
  training.rate = [](int64_t step) { return step < 2000 ? 0.1 : step < 3200 ? 0.01 : 0.02; };
  training.plasticity = [](int module, int64_t step) { return 1.0 / static_cast<double>(module + step); };
  training.meddle = [](int64_t step, Policy& policy) {
    if (step == 500) policy.Adopt(step, 2);
  };
  const auto live = MakePolicy(policy::SnrConfig(), training.shape).value();
  const std::vector<Decision> decisions = training.Run(*live);
  ASSERT_GE(decisions.size(), 3u);

  std::vector<Recorded> recording;
  RecordingParser parser;
  bool adopted = false;
  for (const Observation& observation : training.observations) {
    if (observation.step >= 500 && !std::exchange(adopted, true)) {
      recording.push_back(parser.ParseLine(FormatAdoption(500, 2)).value().value());
    }
    recording.push_back(parser.ParseLine(FormatObservation(observation)).value().value());
  }
  const auto fresh = MakePolicy(policy::SnrConfig(), training.shape).value();
  const std::vector<Decision> replayed = Replay(recording, policy::kModules, *fresh).value();
  ASSERT_EQ(replayed.size(), decisions.size());
  for (size_t i = 0; i < decisions.size(); ++i) {
    EXPECT_EQ(replayed[i].step, decisions[i].step);
    EXPECT_EQ(replayed[i].frozen_prefix, decisions[i].frozen_prefix);
    EXPECT_EQ(replayed[i].reason, decisions[i].reason);
  }
}

}  // namespace
}  // namespace egeria::controller

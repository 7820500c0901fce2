#include "controller/cli/replay_command.h"

#include <sstream>
#include <string>
#include <vector>

#include "common/policy/policy_config.h"
#include "controller/cli/command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Outcome {
  int code = 0;
  std::string out;
  std::string err;
};

// `egeria replay` with `flags` and `input` as standard input.
Outcome RunReplay(std::vector<const char*> flags, const std::string& input) {
  flags.insert(flags.begin(), {"egeria", "replay"});
  std::istringstream in(input);
  std::ostringstream out, err;
  Outcome outcome;
  outcome.code = cli::Run(static_cast<int>(flags.size()), flags.data(), {AddReplayCommand}, {in, out, err});
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

// 200 lines of a job of three modules: module 0 decays faster than module 1; the rate drops at line 120.
std::string Recording() {
  std::ostringstream lines;
  for (int i = 0; i < 200; ++i) {
    lines << "{\"step\":" << 10 * i << ",\"loss\":1,\"lr\":" << (i < 120 ? 0.1 : 0.01) << ",\"plasticity\":["
          << 1.0 / (1 + i * i) << "," << 0.5 / (1 + i) << ",null]}\n";
  }
  return lines.str();
}

TEST(ReplayCommand, PrintsOneObjectADecision) {
  const Outcome outcome = RunReplay({"-", "--interval", "10"}, Recording());
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_THAT(outcome.out, HasSubstr("\"action\":\"freeze\",\"frozen_prefix\":1,\"reason\":\"module 0: |slope|"));
  EXPECT_THAT(outcome.out,
              HasSubstr("{\"step\":1200,\"action\":\"unfreeze\",\"frozen_prefix\":0,\"reason\":\"learning"));
}

TEST(ReplayCommand, TakesARecordingWithoutAnyLossForAJobThatReportsNone) {
  std::string lines = Recording();
  for (size_t at; (at = lines.find(",\"loss\":1")) != std::string::npos;) lines.erase(at, 9);
  const Outcome outcome = RunReplay({"-", "--interval", "10"}, lines);
  const std::string after = lines.substr(lines.find("{\"step\":60,"));
  EXPECT_THAT(outcome.out, HasSubstr("freeze"));
  EXPECT_EQ(outcome.out, RunReplay({"-", "--bootstrap", "off"}, after).out) << "readings count from step 6 n on";
  const Outcome shorter = RunReplay({"-", "--interval", "1000"}, lines);
  EXPECT_THAT(shorter.out, IsEmpty());
  EXPECT_THAT(shorter.err, HasSubstr("without a loss it lasts 6 n steps"));
  // The job's policy asked for none.
  const std::string job = "{\"job\":{\"modules\":3,\"losses_reported\":true}}\n";
  EXPECT_EQ(RunReplay({"-", "--interval", "10"}, job + lines).out, outcome.out);
  // One loss, and the others are missed.
  const Outcome one = RunReplay({"-", "--interval", "10"}, "{\"step\":0,\"loss\":1}\n" + lines);
  EXPECT_THAT(one.out, IsEmpty());
  EXPECT_THAT(one.err, HasSubstr("the loss never settled"));
}

TEST(ReplayCommand, HandsItsFlagsToThePolicy) {
  const std::string plain = RunReplay({"-", "--bootstrap", "off"}, Recording()).out;
  for (const std::vector<const char*>& flags : std::vector<std::vector<const char*>>{
           {"--bootstrap", "on", "--interval", "20"},
           {"--bootstrap", "off", "--window", "5"},
           {"--bootstrap", "off", "--tolerance", "0.01"},
           {"--bootstrap", "off", "--signed"},
           {"--bootstrap", "off", "--learning-rate-drop", "0"},
           {"--bootstrap", "off", "--learning-rate-drop", "0", "--learning-rate-rise", "2"},
           {"--bootstrap", "off", "--unfreeze-step", "900", "--unfreeze-step", "1900"}}) {
    std::vector<const char*> all = {"-"};
    all.insert(all.end(), flags.begin(), flags.end());
    const Outcome outcome = RunReplay(all, Recording());
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.out, plain) << flags[flags.size() - 2];
  }
}

TEST(ReplayCommand, ReplaysASchedule) {
  const Outcome outcome =
      RunReplay({"-", "--policy", "schedule", "--schedule", "0.5:1,0.75:2", "--total-steps", "2000"}, Recording());
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out,
            "{\"step\":1000,\"action\":\"freeze\",\"frozen_prefix\":1,\"reason\":\"the schedule freezes 1 of 3 "
            "modules from 50 % of 2000 steps on\"}\n"
            "{\"step\":1500,\"action\":\"freeze\",\"frozen_prefix\":2,\"reason\":\"the schedule freezes 2 of 3 "
            "modules from 75 % of 2000 steps on\"}\n");
}

TEST(ReplayCommand, DecidesNothingWithoutAPolicyOrInput) {
  EXPECT_THAT(RunReplay({"-", "--policy", "none"}, Recording()).out, IsEmpty());
  const Outcome empty = RunReplay({"-", "--modules", "3"}, "");
  EXPECT_EQ(empty.code, 0);
  EXPECT_THAT(empty.out, IsEmpty());
  EXPECT_THAT(empty.err, HasSubstr("the bootstrapping stage did not end"));
}

TEST(ReplayCommand, EndsWithTwoAtBadInput) {
  const auto expect_bad = [](std::vector<const char*> flags, const std::string& input, const char* error) {
    const Outcome outcome = RunReplay(std::move(flags), input);
    EXPECT_EQ(outcome.code, 2) << error;
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, HasSubstr(error));
  };
  const std::string line = "{\"step\":1,\"module\":0,\"plasticity\":0.1}\n";
  expect_bad({}, line, "file is required");
  expect_bad({"-"}, line, "give --modules");
  expect_bad({"-", "--modules", "1"}, line, "[BAD_POLICY] modules is 1");
  expect_bad({"-", "--modules", "3", "--window", "2"}, line, "[BAD_POLICY] window is 2");
  expect_bad({"-", "--modules", "3", "--window", "few"}, line, "--window");
  expect_bad({"-", "--modules", "3", "--policy", "psychic"}, line, "--policy");
  expect_bad({"-", "--modules", "3", "--bootstrap", "maybe"}, line, "--bootstrap");
  expect_bad({"-", "--modules", "3", "--policy", "schedule", "--schedule", "half:1"}, line,
             "--schedule has \"half:1\": write FRACTION:PREFIX");
  expect_bad({"-", "--modules", "3", "--policy", "schedule"}, line, "[BAD_POLICY]");
  expect_bad({"-", "--modules", "3"}, line + "oops\n", "egeria replay: [BAD_RECORDING] line 2: not JSON");
  expect_bad({"/nonexistent/readings.jsonl", "--modules", "3"}, "", "cannot read /nonexistent/readings.jsonl");
}

TEST(ReplayCommand, WarnsOfKeysThatItIgnores) {
  const Outcome outcome = RunReplay({"-", "--modules", "3", "--bootstrap", "off"}, "{\"step\":1,\"plastcity\":1}\n");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("ignored the key \"plastcity\""));
}

TEST(Program, WantsASubcommandAndHelpsWithEach) {
  const std::vector<const char*> bare = {"egeria"};
  std::istringstream in;
  std::ostringstream out, err;
  EXPECT_EQ(cli::Run(1, bare.data(), {AddReplayCommand}, {in, out, err}), 2);
  EXPECT_THAT(err.str(), HasSubstr("subcommand"));
  const Outcome help = RunReplay({"--help"}, "");
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("--tolerance"));
  for (const std::string& name : policy::PolicyNames()) EXPECT_THAT(help.out, HasSubstr(name + ": "));
}

TEST(Program, EndsWithOneWhereTheInputIsNotToBlame) {
  std::istringstream in;
  std::ostringstream out, err;
  const AddCommands add = [](CLI::App& app, const Select& select) {
    AddReplayCommand(app, [select](Action) {});
    select([](Streams) { return absl::UnavailableError("no controller"); });
  };
  const std::vector<const char*> replay = {"egeria", "replay", "-"};
  EXPECT_EQ(cli::Run(3, replay.data(), {add}, {in, out, err}), 1);
  EXPECT_EQ(err.str(), "egeria replay: no controller\n");
}

TEST(ReplayCommand, TakesAnyPolicysConstantsAsJson) {
  const std::string lines = "{\"job\":{\"modules\":4,\"total_steps\":100}}\n{\"step\":50}\n{\"step\":90}\n";
  const Outcome outcome = RunReplay({"-", "--policy", "staged", "--options", R"({"begin":0.5,"stages":1})"}, lines);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("{\"step\":50,\"action\":\"freeze\",\"frozen_prefix\":3,"));
  EXPECT_THAT(
      RunReplay({"-", "--policy", "staged", "--total-steps", "180", "--options", R"({"begin":0.5,"stages":1})"}, lines)
          .out,
      HasSubstr("{\"step\":90,"))
      << "a flag wins over the recording";
  const Outcome bad = RunReplay({"-", "--policy", "auto", "--options", R"({"sart":0.5})"}, lines);
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("--options: "));
  EXPECT_THAT(RunReplay({"-", "--policy", "auto", "--options", R"({"start":2})"}, lines).err,
              HasSubstr("[BAD_POLICY]"));
}

}  // namespace
}  // namespace egeria::cli

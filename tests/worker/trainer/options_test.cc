#include "worker/trainer/options.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/trainer/progress.h"
#include "worker/trainer/schedule.h"
#include "worker/trainer/summary.h"

namespace egeria::trainer {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

CommandLine Parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "egeria-train");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return ParseCommandLine(static_cast<int>(argv.size()), argv.data());
}

TEST(Options, FillsInTheTasksDefaults) {
  const CommandLine digits = Parse({"--task", "digits", "--data", "x"});
  ASSERT_FALSE(digits.exit_code.has_value());
  EXPECT_EQ(digits.options.epochs, 30);
  EXPECT_EQ(digits.options.policy, "none");
  EXPECT_EQ(digits.options.training_job, "digits");
  const CommandLine resnet = Parse({"--task", "resnet56", "--data", "x", "--controller", "unix:/c", "--epochs", "3"});
  EXPECT_EQ(resnet.options.epochs, 3);
  EXPECT_EQ(resnet.options.policy, "auto");
  EXPECT_EQ(ModelName(resnet.options), "resnet56");
}

TEST(Options, BadFlagsEndWithTwo) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"--task", "digits"},
           {"--task", "imagenet", "--data", "x"},
           {"--task", "digits", "--data", "x", "--epochs", "-1"},
           {"--task", "digits", "--data", "x", "--unknown"},
           {"--task", "digits", "--data", "x", "--resume"},
           {"--task", "digits", "--data", "x", "--controller", "unix:/c", "--plans", "p"},
           {"--task", "digits", "--data", "x", "--controller", "unix:/c", "--policy-json", "{"},
           {"--task", "digits", "--data", "x", "--controller", "unix:/c", "--policy-json", "{\"none\": {}}"},
           {"--task", "digits", "--data", "x", "--controller", "unix:/c", "--freeze-at", "0.5:2"},
           {"--task", "digits", "--data", "x", "--cache", "/folder"},
           {"--task", "digits", "--data", "x", "--cache", "unix:/c", "--cache-use", "never"},
           {"--task", "digits", "--data", "x", "--cache", "unix:/c", "--cache-compression", "fp16"},
           {"--task", "digits", "--data", "x", "--frozen-forward", "bf16"},
           {"--task", "digits", "--data", "x", "--cache", "unix:/c", "--cache-job-quota", "much"},
           {"--task", "digits", "--data", "x", "--cache", "unix:/c", "--cache-job-quota", "1KiB"},
           {"--task", "digits", "--data", "x", "--budget", "100%"},
           {"--task", "digits", "--data", "x", "--reinvest", "100%"},
           {"--task", "digits", "--data", "x", "--reinvest", "much"},
           {"--task", "digits", "--data", "x", "--controller", "unix:/c", "--observe", "--reinvest"},
           {"--task", "digits", "--data", "x", "--augment", "random"},
           {"--task", "digits", "--data", "x", "--bootstrap", "maybe"}}) {
    EXPECT_EQ(Parse(arguments).exit_code, 2) << ::testing::PrintToString(arguments);
  }
}

TEST(Options, ReinvestsWhatIsPlannedOrWhatItIsTold) {
  EXPECT_FALSE(Parse({"--task", "digits", "--data", "x", "--controller", "unix:/c"}).options.reinvest);
  const CommandLine planned = Parse({"--task", "digits", "--reinvest", "--data", "x", "--controller", "unix:/c"});
  ASSERT_FALSE(planned.exit_code.has_value());
  EXPECT_TRUE(planned.options.reinvest);
  EXPECT_EQ(planned.options.reinvest_saving, 0);
  const CommandLine told = Parse({"--task", "digits", "--data", "x", "--controller", "unix:/c", "--reinvest", "8%"});
  EXPECT_TRUE(told.options.reinvest);
  EXPECT_DOUBLE_EQ(told.options.reinvest_saving, 0.08);
  EXPECT_FALSE(Parse({"--task", "digits", "--data", "x", "--reinvest"}).options.reinvest) << "nothing will freeze";
}

TEST(Options, TakesTheCacheFromTheEnvironmentUnlessItIsToldOtherwise) {
  setenv("EGERIA_CACHE", "unix:/e", 1);
  EXPECT_EQ(Parse({"--task", "digits", "--data", "x"}).options.cache, "unix:/e");
  EXPECT_EQ(Parse({"--task", "digits", "--data", "x", "--cache", "unix:/c"}).options.cache, "unix:/c");
  EXPECT_EQ(Parse({"--task", "digits", "--data", "x", "--cache", "none"}).options.cache, "");
  EXPECT_EQ(Parse({"--task", "digits", "--data", "x", "--observe"}).options.cache, "");
  unsetenv("EGERIA_CACHE");
  setenv("EGERIA_CACHE_COMPRESSION", "lz4", 1);
  EXPECT_EQ(Parse({"--task", "digits", "--data", "x"}).options.cache_compression, "lz4");
  unsetenv("EGERIA_CACHE_COMPRESSION");
  EXPECT_EQ(Parse({"--task", "digits", "--data", "x"}).options.cache_job_quota, 0);
  EXPECT_EQ(Parse({"--task", "digits", "--data", "x", "--cache-job-quota", "3MiB"}).options.cache_job_quota, 3 << 20);
  for (const char* variable : {"EGERIA_CACHE_FORMAT", "EGERIA_CACHE_PRECISION"}) {
    setenv(variable, "bf16", 1);
    EXPECT_EQ(Parse({"--task", "digits", "--data", "x"}).exit_code, 2) << variable;
    unsetenv(variable);
  }
  EXPECT_EQ(Parse({"--task", "digits", "--data", "x"}).options.cache, "");
  EXPECT_EQ(Parse({"--task", "digits", "--data", "x"}).options.augment, "none");
  EXPECT_EQ(Parse({"--task", "resnet20", "--data", "x"}).options.augment, "random");
}

TEST(Options, TakesThePolicyAndItsConstantsFromTheEnvironmentUnlessItIsToldOtherwise) {
  setenv("EGERIA_POLICY", "plasticity", 1);
  setenv("EGERIA_POLICY_OPTIONS", R"({"window": 7})", 1);
  const std::vector<std::string> job = {"--task", "digits", "--data", "x", "--controller", "unix:/c"};
  const Options options = Parse(job).options;
  EXPECT_EQ(options.policy, "plasticity");
  EXPECT_EQ(options.policy_json, R"({"plasticity": {"window": 7}})");
  std::vector<std::string> told = job;
  told.insert(told.end(), {"--policy", "snr", "--policy-json", "{}"});
  EXPECT_EQ(Parse(told).options.policy, "snr");
  EXPECT_EQ(Parse(told).options.policy_json, "{}");
  unsetenv("EGERIA_POLICY_OPTIONS");
  setenv("EGERIA_POLICY", "plastic", 1);
  EXPECT_EQ(Parse(job).exit_code, 2);
  unsetenv("EGERIA_POLICY");
}

TEST(Options, StoppingOnASignalNeedsACheckpoint) {
  EXPECT_EQ(Parse({"--task", "digits", "--data", "x", "--stop-on-signal"}).exit_code, 2);
  EXPECT_TRUE(
      Parse({"--task", "digits", "--data", "x", "--stop-on-signal", "--checkpoint", "c"}).options.stop_on_signal);
}

TEST(Options, APolicyWithoutAControllerTrainsPlainly) {
  const CommandLine line = Parse({"--task", "digits", "--data", "x", "--controller", "none", "--policy", "plasticity"});
  EXPECT_FALSE(line.exit_code.has_value());
  EXPECT_EQ(line.options.policy, "none");
}

TEST(Options, HelpEndsWithZero) { EXPECT_EQ(Parse({"--help"}).exit_code, 0); }

TEST(Options, ControllerNoneIsAPlainRunWhateverTheEnvironmentSays) {
  ::setenv("EGERIA_CONTROLLER", "unix:/somewhere", 1);
  EXPECT_EQ(Parse({"--task", "digits", "--data", "x"}).options.controller, "unix:/somewhere");
  const Options options = Parse({"--task", "digits", "--data", "x", "--controller", "none"}).options;
  ::unsetenv("EGERIA_CONTROLLER");
  EXPECT_EQ(options.controller, "");
  EXPECT_EQ(options.policy, "none");
}

TEST(Options, SingleConstantsWinOverThePolicyJson) {
  const Options options = Parse({"--task",        "digits",
                                 "--data",        "x",
                                 "--controller",  "unix:/c",
                                 "--policy",      "plasticity",
                                 "--policy-json", "{\"plasticity\": {\"window\": 7, \"learning_rate_drop\": 5}}",
                                 "--window",      "4",
                                 "--interval",    "20",
                                 "--tolerance",   "0.3",
                                 "--probe-batch", "16",
                                 "--bootstrap",   "off"})
                              .options;
  EXPECT_EQ(nlohmann::json::parse(*BuildPolicyJson(options)),
            nlohmann::json::parse("{\"plasticity\": {\"window\": 4, \"learning_rate_drop\": 5, \"interval_steps\": 20, "
                                  "\"tolerance\": 0.3, \"batch_size\": 16, \"bootstrap\": false}}"));
}

TEST(Options, AProbeIsNoLargerThanTheBatch) {
  auto parse = [](std::vector<std::string> more) {
    std::vector<std::string> all = {"--task",  "digits",       "--data", "x",        "--controller",
                                    "unix:/c", "--batch-size", "16",     "--policy", "plasticity"};
    all.insert(all.end(), more.begin(), more.end());
    return Parse(all);
  };
  EXPECT_EQ(nlohmann::json::parse(*BuildPolicyJson(parse({}).options))["plasticity"]["batch_size"], 16);
  EXPECT_EQ(parse({"--probe-batch", "17"}).exit_code, 2);
  EXPECT_EQ(parse({"--policy-json", "{\"plasticity\": {\"batch_size\": 32}}"}).exit_code, 2);
  EXPECT_FALSE(parse({"--probe-batch", "8"}).exit_code.has_value());
}

TEST(Options, OtherPoliciesTakeTheirConstantsAsJson) {
  const CommandLine line = Parse({"--task", "digits", "--data", "d", "--controller", "unix:/x", "--batch-size", "16",
                                  "--policy", "auto", "--policy-json", "{\"auto\": {\"start\": 0.5}}"});
  ASSERT_FALSE(line.exit_code);
  EXPECT_EQ(nlohmann::json::parse(*BuildPolicyJson(line.options)),
            nlohmann::json::parse("{\"auto\": {\"start\": 0.5}}"));
  const CommandLine staged =
      Parse({"--task", "digits", "--data", "d", "--controller", "unix:/x", "--policy", "staged"});
  ASSERT_FALSE(staged.exit_code);
  EXPECT_EQ(nlohmann::json::parse(*BuildPolicyJson(staged.options)), nlohmann::json::parse("{\"staged\": {}}"));
  EXPECT_EQ(Parse({"--task", "digits", "--data", "d", "--controller", "unix:/x", "--policy", "staged", "--window", "5"})
                .exit_code,
            2);
}

TEST(Options, ASchedulePolicyIsListedByFraction) {
  const Options options = Parse({"--task", "digits", "--data", "x", "--controller", "unix:/c", "--policy", "schedule",
                                 "--freeze-at", "0.5:2", "0.75:3"})
                              .options;
  EXPECT_EQ(nlohmann::json::parse(*BuildPolicyJson(options)),
            nlohmann::json::parse("{\"schedule\": {\"entries\": [{\"fraction\": 0.5, \"frozen_prefix\": 2}, "
                                  "{\"fraction\": 0.75, \"frozen_prefix\": 3}]}}"));
}

TEST(Schedule, StepFallsAtItsMilestones) {
  const LearningRateOptions options{.kind = ScheduleKind::kStep, .base = 1, .total_steps = 100};
  EXPECT_DOUBLE_EQ(LearningRate(options, 49), 1);
  EXPECT_DOUBLE_EQ(LearningRate(options, 50), 0.1);
  EXPECT_NEAR(LearningRate(options, 75), 0.01, 1e-15);
}

TEST(Schedule, CosineFallsFromBaseToZero) {
  const LearningRateOptions options{.kind = ScheduleKind::kCosine, .base = 2, .total_steps = 110, .warmup_steps = 10};
  EXPECT_DOUBLE_EQ(LearningRate(options, 10), 2);
  EXPECT_NEAR(LearningRate(options, 60), 1, 1e-12);
  EXPECT_NEAR(LearningRate(options, 110), 0, 1e-12);
  for (int64_t step = 10; step < 109; ++step) EXPECT_GT(LearningRate(options, step), LearningRate(options, step + 1));
}

TEST(Schedule, WarmUpRisesInEqualStepsToTheBase) {
  const LearningRateOptions options{
      .kind = ScheduleKind::kConstant, .base = 0.5, .total_steps = 100, .warmup_steps = 5};
  for (int64_t step = 0; step < 5; ++step) EXPECT_DOUBLE_EQ(LearningRate(options, step), 0.1 * (step + 1));
  EXPECT_DOUBLE_EQ(LearningRate(options, 5), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(options, 99), 0.5);
}

TEST(Schedule, RefusesAnUnknownName) {
  EXPECT_THAT(std::string(ParseScheduleKind("linear").status().message()), HasSubstr("[BAD_SCHEDULE]"));
}

std::string TemporaryFile(const std::string& content) {
  std::string pattern = (std::filesystem::temp_directory_path() / "egeria-plans-XXXXXX").string();
  const int file = ::mkstemp(pattern.data());
  EXPECT_EQ(::write(file, content.data(), content.size()), static_cast<ssize_t>(content.size()));
  ::close(file);
  return pattern;
}

TEST(Plans, AreReadFromAListAndFromASummary) {
  RunSummary summary;
  summary.decisions = {{10, "freeze", 2, true}, {30, "unfreeze", 0, true}};
  for (const std::string& content :
       {ToJson(summary), std::string("[{\"step\": 10, \"frozen_prefix\": 2}, {\"step\": 30, \"frozen_prefix\": 0}]")}) {
    const std::string path = TemporaryFile(content);
    const auto plans = ReadPlans(path);
    std::filesystem::remove(path);
    ASSERT_TRUE(plans.ok()) << plans.status();
    ASSERT_EQ(plans->size(), 2u);
    EXPECT_EQ((*plans)[0].step, 10);
    EXPECT_EQ((*plans)[0].frozen_prefix, 2);
    EXPECT_EQ((*plans)[1].step, 30);
  }
}

TEST(Plans, ThatAreNoneAreNamed) {
  EXPECT_THAT(std::string(ReadPlans("/nonexistent").status().message()), HasSubstr("[NO_PLANS]"));
  for (const char* content :
       {"", "{}", "{\"runs\": []}", "[1]", "[{\"step\": 1}]", "[{\"step\": 1.5, \"frozen_prefix\": 1}]"}) {
    const std::string path = TemporaryFile(content);
    EXPECT_THAT(std::string(ReadPlans(path).status().message()), HasSubstr("[BAD_PLANS]")) << content;
    std::filesystem::remove(path);
  }
}

TEST(Summary, HasTheFieldsThatToolsRead) {
  RunSummary summary;
  summary.task = "digits";
  summary.decisions = {{10, "freeze", 2, true}};
  const nlohmann::json run = nlohmann::json::parse(ToJson(summary))["runs"][0];
  for (const char* field : {"task", "policy", "ranks", "seconds", "accuracy", "validation_loss", "frozen_share",
                            "decisions", "ranks_identical", "parameters_hash", "bytes_all_reduced"}) {
    EXPECT_TRUE(run.contains(field)) << field;
  }
  EXPECT_EQ(run["decisions"][0]["action"], "freeze");
}

TEST(Summary, SaysWhatWasSavedOrWhatEgeriaTook) {
  RunSummary summary;
  summary.mode = "act";
  const std::string plain = Describe(summary);
  EXPECT_THAT(plain, EndsWith("frozen share 0.000, 0 switches, ranks identical: yes"));
  summary.time_saved_share = -0.031;
  summary.account = {.saved_seconds = 0.5, .spent_seconds = {{"hooks", 1.5}, {"probes", 2}}};
  EXPECT_EQ(Describe(summary), plain + ", Egeria took 3.50 s, nothing froze");
  summary.decisions = {{10, "freeze", 2, true}};
  EXPECT_THAT(Describe(summary), EndsWith(", saved about 0.50 s, Egeria took 3.50 s"));
  summary.time_saved_share = 0.07;
  EXPECT_THAT(Describe(summary), EndsWith(" Egeria took 3.50 s (7 % of the time)"));
  summary = {};
  summary.mode = "plain";
  summary.time_saved_share = -0.0001;
  EXPECT_EQ(Describe(summary), plain);
}

TEST(Summary, ReplacesTheFileWholeAndLeavesNoOther) {
  const std::string path = TemporaryFile("old");
  ASSERT_TRUE(WriteAtomically(path, "new").ok());
  std::string content;
  std::ifstream(path) >> content;
  EXPECT_EQ(content, "new");
  std::filesystem::remove(path);
  EXPECT_THAT(std::string(WriteAtomically("/nonexistent/folder/file", "x").message()), HasSubstr("[CANNOT_WRITE]"));
}

TEST(Progress, SaysWhatIsFrozenAndWhatIsLeft) {
  Moment moment;
  moment.step = 41;
  moment.total_steps = 100;
  moment.epoch = 2;
  moment.epochs = 5;
  moment.loss = 0.5;
  moment.learning_rate = 0.1;
  moment.frozen_prefix = 2;
  moment.modules = 5;
  moment.left = absl::Seconds(3725);
  EXPECT_EQ(Describe(moment), " 41%  epoch 2/5  step 41/100  loss 0.5000  lr 0.1  frozen 2/5  left 1:02:05");
  moment.saved_seconds = -0.25;
  EXPECT_EQ(Describe(moment),
            " 41%  epoch 2/5  step 41/100  loss 0.5000  lr 0.1  frozen 2/5  saved -0.2 s  left 1:02:05");
  moment.saved_seconds = -0.01;
  EXPECT_THAT(Describe(moment), HasSubstr("saved 0.0 s"));
}

TEST(Progress, PrintsALineEverySecondsOffATerminal) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const out = ::open_memstream(&text, &size);
  const absl::Time start = absl::FromUnixSeconds(1000);
  Progress progress(out, /*terminal=*/false, start, /*first_step=*/0);
  EXPECT_FALSE(progress.Due(start + absl::Seconds(1)));
  ASSERT_TRUE(progress.Due(start + absl::Seconds(10)));
  Moment moment;
  moment.step = 10;
  moment.total_steps = 40;
  progress.Show(moment, start + absl::Seconds(10));
  EXPECT_FALSE(progress.Due(start + absl::Seconds(11)));
  progress.Finish();
  std::fclose(out);
  EXPECT_THAT(std::string(text, size), ::testing::AllOf(HasSubstr("step 10/40"), HasSubstr("left 0:30\n")));
  std::free(text);
}

TEST(PlannedRates, AreThoseOfTheScheduleFromTheFirstStepToTheLast) {
  LearningRateOptions options{.kind = ScheduleKind::kStep, .base = 1, .total_steps = 100};
  std::vector<double> rates = PlannedRates(options);
  ASSERT_EQ(rates.size(), 100u);
  for (int64_t step = 0; step < 100; ++step) EXPECT_DOUBLE_EQ(rates[step], LearningRate(options, step));
  options.kind = ScheduleKind::kCosine;
  options.total_steps = 1'000'000;
  rates = PlannedRates(options);
  ASSERT_EQ(rates.size(), 1024u);
  EXPECT_DOUBLE_EQ(rates.front(), 1);
  EXPECT_DOUBLE_EQ(rates.back(), LearningRate(options, 999'999));
  options.total_steps = 1;
  EXPECT_EQ(PlannedRates(options).size(), 1u);
}

}  // namespace
}  // namespace egeria::trainer

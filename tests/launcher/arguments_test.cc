#include "launcher/arguments.h"

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::run {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kJobId[] = "01234567-89ab-4cde-8f01-23456789abcd";

class ArgumentsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("EGERIA_CACHE");
    unsetenv("EGERIA_CONTROLLER");
    unsetenv("EGERIA_JOB_ID");
  }
};

TEST_F(ArgumentsTest, LeaveTorchrunsOwnAlone) {
  const std::vector<std::string> all = {"--nproc-per-node", "2", "--", "train.py", "--egeria-name", "", "-h"};
  const auto arguments = ParseArguments(all);
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_EQ(arguments->torchrun, all);
  EXPECT_FALSE(arguments->help);
  EXPECT_EQ(arguments->name, "");
}

TEST_F(ArgumentsTest, TakeOwnOptionsFromTheFrontInBothSpellings) {
  const auto arguments =
      ParseArguments({"--egeria-controller", "unix:/x", "--egeria-job-id=" + std::string(kJobId), "--egeria-name",
                      "a b", "--egeria-config=/c.yaml", "--egeria-state-dir", "/s", "--egeria-metrics", "127.0.0.1:0",
                      "--egeria-ready-timeout", "0.5", "--egeria-budget", "20%", "train.py"});
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_EQ(arguments->controller, "unix:/x");
  EXPECT_EQ(arguments->job_id, kJobId);
  EXPECT_EQ(arguments->name, "a b");
  EXPECT_EQ(arguments->config, "/c.yaml");
  EXPECT_EQ(arguments->budget, "20%");
  EXPECT_EQ(arguments->state_dir, "/s");
  EXPECT_EQ(arguments->metrics, "127.0.0.1:0");
  EXPECT_EQ(arguments->ready_timeout, absl::Milliseconds(500));
  EXPECT_THAT(arguments->torchrun, ElementsAre("train.py"));
}

TEST_F(ArgumentsTest, NameSomethingToRunOrAProcessToServe) {
  EXPECT_FALSE(ParseArguments({}).ok());
  EXPECT_FALSE(ParseArguments({"--egeria-beside", "/f", "train.py"}).ok());
  const auto arguments = ParseArguments({"--egeria-beside", "/f"});
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_EQ(arguments->beside, "/f");
}

TEST_F(ArgumentsTest, PreferTheOptionToTheEnvironment) {
  setenv("EGERIA_CONTROLLER", "host:1", 1);
  setenv("EGERIA_JOB_ID", kJobId, 1);
  EXPECT_EQ(ParseArguments({"x"})->controller, "host:1");
  EXPECT_EQ(ParseArguments({"x"})->job_id, kJobId);
  EXPECT_EQ(ParseArguments({"--egeria-controller", "none", "x"})->controller, "none");
}

TEST_F(ArgumentsTest, RefuseWhatIsWrongAndSayWhatIsRight) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{},
                                             {"--egeria-name"},
                                             {"--egeria-name", ""},
                                             {"--egeria-nmae", "x", "y"},
                                             {"--egeria-name", "x"},
                                             {"--egeria-job-id", "7", "x"},
                                             {"--egeria-controller", "host", "x"},
                                             {"--egeria-ready-timeout", "0", "x"},
                                             {"--egeria-ready-timeout", "nan", "x"},
                                             {"--egeria-", "x"},
                                             {"--egeria-budget", "0", "x"},
                                             {"--egeria-budget", "120%", "x"},
                                             {"--egeria-budget", "much", "x"}}) {
    EXPECT_FALSE(ParseArguments(wrong).ok()) << ::testing::PrintToString(wrong);
  }
  EXPECT_THAT(std::string(ParseArguments({"--egeria-nmae", "x"}).status().message()), HasSubstr("--egeria-name"));
}

TEST_F(ArgumentsTest, TakeTheCacheAsAFolderAnAddressOrNone) {
  EXPECT_EQ(ParseArguments({"x"})->cache, std::nullopt);
  for (const char* as_it_is : {"", "none", "/d", "unix:/s"}) {
    EXPECT_EQ(ParseArguments({"--egeria-cache", as_it_is, "x"})->cache, as_it_is);
    setenv("EGERIA_CACHE", as_it_is, 1);
    EXPECT_EQ(ParseArguments({"x"})->cache, as_it_is);
    EXPECT_EQ(ParseArguments({"--egeria-cache=/other", "x"})->cache, "/other");
  }
  EXPECT_EQ(ParseArguments({"--egeria-cache", "../d", "x"})->cache,
            (std::filesystem::current_path().parent_path() / "d").string());
}

TEST_F(ArgumentsTest, RefuseACacheOfAnotherNode) {
  for (const std::string& wrong : {std::string("host:80"), std::string("unix:relative"), "/" + std::string(100, 'x')}) {
    const auto parsed = ParseArguments({"--egeria-cache", wrong, "x"});
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("cache")) << wrong;
  }
}

TEST_F(ArgumentsTest, AskForHelpOnlyInFirstPlace) {
  EXPECT_TRUE(ParseArguments({"--help"})->help);
  EXPECT_TRUE(ParseArguments({"-h"})->help);
  EXPECT_TRUE(ParseArguments({"--version"})->version);
  EXPECT_FALSE(ParseArguments({"train.py", "--version"})->version);
  EXPECT_FALSE(ParseArguments({"train.py", "--help"})->help);
}

TEST_F(ArgumentsTest, TellOwnOptionsInTheWrongPlace) {
  EXPECT_THAT(MisplacedOptions({"--nproc-per-node", "2", "--egeria-name=x", "t.py"}), ElementsAre("--egeria-name"));
  EXPECT_THAT(MisplacedOptions({"t.py", "--", "--egeria-name"}), ElementsAre());
  EXPECT_THAT(MisplacedOptions({"t.py", "--egeria-other"}), ElementsAre());
}

TEST_F(ArgumentsTest, KnowProgramsAndSeveralNodes) {
  EXPECT_TRUE(RunsProgram({"--no-python", "egeria-train"}));
  EXPECT_TRUE(RunsProgram({"--no_python", "egeria-train"}));
  EXPECT_FALSE(RunsProgram({"train.py"}));
  EXPECT_TRUE(SpansNodes({"--nnodes", "2", "t.py"}));
  EXPECT_TRUE(SpansNodes({"--nnodes=1:4", "t.py"}));
  EXPECT_FALSE(SpansNodes({"--nnodes=1", "t.py"}));
  EXPECT_FALSE(SpansNodes({"--nnodes", "1:1", "t.py"}));
  EXPECT_FALSE(SpansNodes({"--nproc-per-node", "2", "t.py"}));
}

}  // namespace
}  // namespace egeria::run

#include "common/config/option_set.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace egeria::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Options {
  std::string name = "default";
  bool verbose = false;
  std::vector<std::string> listen;
  struct {
    int threads = 1;
    double load = 0.5;
    std::vector<int> cpus = {0};
    absl::Duration patience = absl::Seconds(90);
    ByteCount bytes{1 << 20};
  } engine;
};

class OptionSetTest : public ::testing::Test {
 protected:
  absl::StatusOr<OptionSet::Outcome> Load(std::vector<std::string> flags, const Environment& environment = {},
                                          const std::string& file = "") {
    options_ = Options();
    OptionSet set = Set();
    if (!file.empty()) {
      std::ofstream(folder_ / "options.yaml") << file;
      flags.insert(flags.begin(), {"--config", folder_ / "options.yaml"});
    }
    std::vector<const char*> argv = {"program"};
    for (const std::string& flag : flags) argv.push_back(flag.c_str());
    out_.str("");
    return set.Load(static_cast<int>(argv.size()), argv.data(), environment, out_);
  }
  std::string ErrorOf(std::vector<std::string> flags, const Environment& environment = {},
                      const std::string& file = "") {
    const auto loaded = Load(std::move(flags), environment, file);
    EXPECT_FALSE(loaded.ok());
    return std::string(loaded.status().message());
  }
  OptionSet Set() {
    OptionSet set("program", "PROGRAM_", "is a test", "1.2.3");
    set.Add("name", &options_.name, "a name", OneOf({"default", "file", "environment", "flag"}))
        .Add("verbose", &options_.verbose, "say more")
        .Add("listen", &options_.listen, "addresses")
        .Add("engine.threads", &options_.engine.threads, "threads", InRange(1, 8))
        .Add("engine.load", &options_.engine.load, "load")
        .Add("engine.cpus", &options_.engine.cpus, "CPUs")
        .Add("engine.patience", &options_.engine.patience, "how long to wait")
        .Add("engine.bytes", &options_.engine.bytes, "how much to hold");
    set.AddCheck([this] {
      return options_.verbose && options_.engine.threads == 8 ? absl::InvalidArgumentError("too much at once")
                                                              : absl::OkStatus();
    });
    return set;
  }

  testing::TempFolder folder_;
  Options options_;
  std::ostringstream out_;
};

TEST_F(OptionSetTest, EachSourceOverrulesTheOnesBefore) {
  const std::string file = "name: file\nengine: {threads: 2, load: 0.25}\n";
  ASSERT_TRUE(Load({}).ok());
  EXPECT_EQ(options_.name, "default");
  ASSERT_TRUE(Load({}, {}, file).ok());
  EXPECT_EQ(options_.name, "file");
  EXPECT_EQ(options_.engine.threads, 2);
  ASSERT_TRUE(Load({}, {{"PROGRAM_NAME", "environment"}, {"PROGRAM_ENGINE_THREADS", "3"}}, file).ok());
  EXPECT_EQ(options_.name, "environment");
  EXPECT_EQ(options_.engine.threads, 3);
  ASSERT_TRUE(Load({"--name", "flag"}, {{"PROGRAM_NAME", "environment"}, {"PROGRAM_ENGINE_THREADS", "3"}}, file).ok());
  EXPECT_EQ(options_.name, "flag");
  EXPECT_EQ(options_.engine.threads, 3);
  EXPECT_EQ(options_.engine.load, 0.25);
}

TEST_F(OptionSetTest, ReadsEveryTypeFromEverySource) {
  ASSERT_TRUE(Load({}, {}, R"(
verbose: yes
listen: [a, b]
engine:
  cpus: [1, 2]
  patience: 30d
  bytes: 4GiB
)")
                  .ok());
  EXPECT_TRUE(options_.verbose);
  EXPECT_THAT(options_.listen, ElementsAre("a", "b"));
  EXPECT_THAT(options_.engine.cpus, ElementsAre(1, 2));
  EXPECT_EQ(options_.engine.patience, absl::Hours(24 * 30));
  EXPECT_EQ(options_.engine.bytes.value, size_t{4} << 30);
  ASSERT_TRUE(Load({"--verbose", "--listen", "a,b", "--listen", "c", "--engine-cpus=3", "--engine-patience", "1h30m"},
                   {{"PROGRAM_ENGINE_BYTES", "512KiB"}})
                  .ok());
  EXPECT_TRUE(options_.verbose);
  EXPECT_THAT(options_.listen, ElementsAre("a", "b", "c"));
  EXPECT_THAT(options_.engine.cpus, ElementsAre(3));
  EXPECT_EQ(options_.engine.patience, absl::Minutes(90));
  EXPECT_EQ(options_.engine.bytes.value, size_t{512} << 10);
  ASSERT_TRUE(Load({"--verbose=false"}, {{"PROGRAM_VERBOSE", "true"}, {"PROGRAM_ENGINE_CPUS", ""}}).ok());
  EXPECT_FALSE(options_.verbose);
  EXPECT_THAT(options_.engine.cpus, IsEmpty());
}

TEST_F(OptionSetTest, NamesTheNearestKeyOfOneThatItDoesNotKnow) {
  EXPECT_THAT(ErrorOf({}, {}, "\nengine:\n  thread: 2\n"),
              AllOf(HasSubstr("options.yaml:3"), HasSubstr("'engine.thread'"), HasSubstr("'engine.threads'")));
  EXPECT_THAT(ErrorOf({}, {{"PROGRAM_LISTN", "a"}}),
              AllOf(HasSubstr("'PROGRAM_LISTN'"), HasSubstr("'PROGRAM_LISTEN'")));
  EXPECT_THAT(ErrorOf({"--engine-thread", "2"}),
              AllOf(HasSubstr("'--engine-thread'"), HasSubstr("'--engine-threads'")));
  EXPECT_THAT(ErrorOf({"--engine-thread=2"}), HasSubstr("'--engine-threads'"));
  EXPECT_THAT(ErrorOf({"stray"}), HasSubstr("'stray'"));
  ASSERT_TRUE(Load({}, {{"PROGRAMNAME", "of another"}}).ok()) << "without the prefix it is nobody's business";
}

TEST_F(OptionSetTest, SaysWhereAValueIsWrong) {
  EXPECT_THAT(ErrorOf({}, {}, "name: file\nengine: {threads: 99}\n"),
              AllOf(HasSubstr("options.yaml:2: engine.threads"), HasSubstr("between 1 and 8")));
  EXPECT_THAT(ErrorOf({}, {{"PROGRAM_ENGINE_LOAD", "high"}}),
              AllOf(HasSubstr("PROGRAM_ENGINE_LOAD"), HasSubstr("'high'")));
  EXPECT_THAT(ErrorOf({"--engine-patience", "soon"}), AllOf(HasSubstr("--engine-patience"), HasSubstr("30d")));
  EXPECT_THAT(ErrorOf({"--name", "other"}), HasSubstr("default, file, environment, flag"));
  EXPECT_THAT(ErrorOf({"--engine-bytes", "-1"}), HasSubstr("4GiB"));
  EXPECT_THAT(ErrorOf({"--engine-bytes", "99999999999TiB"}), HasSubstr("4GiB"));
  EXPECT_THAT(ErrorOf({"--engine-cpus", "1,x"}), HasSubstr("'x'"));
  EXPECT_THAT(ErrorOf({}, {}, "name: [file]\n"), HasSubstr("not a list"));
  EXPECT_THAT(ErrorOf({}, {}, "name:\n"), HasSubstr("has no value"));
  EXPECT_THAT(ErrorOf({"--verbose", "--engine-threads", "8"}), HasSubstr("too much at once"));
}

TEST_F(OptionSetTest, RefusesFilesThatAreNoMapOfOptions) {
  EXPECT_THAT(ErrorOf({}, {}, "name: file\nname: flag\n"), AllOf(HasSubstr(":2"), HasSubstr("said twice")));
  EXPECT_THAT(ErrorOf({}, {}, "- a\n- b\n"), HasSubstr("map of options"));
  EXPECT_THAT(ErrorOf({}, {}, "name: [unclosed\n"), HasSubstr("options.yaml:"));
  EXPECT_THAT(ErrorOf({}, {}, "listen: [{a: b}]\n"), HasSubstr("list of more than words"));
  EXPECT_THAT(ErrorOf({"--config", "/nowhere/at/all"}), HasSubstr("/nowhere/at/all"));
  ASSERT_TRUE(Load({}, {}, "# nothing set\n").ok());
}

TEST_F(OptionSetTest, TakesTheFileThatTheEnvironmentNames) {
  std::ofstream(folder_ / "other.yaml") << "name: file\n";
  ASSERT_TRUE(Load({}, {{"PROGRAM_CONFIG", folder_ / "other.yaml"}}).ok());
  EXPECT_EQ(options_.name, "file");
}

TEST_F(OptionSetTest, PrintsOptionsThatItReadsBackAsTheSame) {
  const std::vector<std::string> flags = {"--name",         "flag", "--listen",          "unix:/a b,c:1",
                                          "--engine-load",  "0.1",  "--engine-patience", "90s",
                                          "--engine-bytes", "3MiB", "--print-config"};
  auto outcome = Load(flags);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(*outcome, OptionSet::Outcome::kExit);
  const std::string printed = out_.str();
  EXPECT_THAT(printed, HasSubstr("# how long to wait"));
  outcome = Load({"--print-config"}, {}, printed);
  ASSERT_TRUE(outcome.ok()) << outcome.status() << printed;
  EXPECT_EQ(out_.str(), printed);
  EXPECT_THAT(options_.listen, ElementsAre("unix:/a b", "c:1"));
  EXPECT_EQ(options_.engine.load, 0.1);
}

TEST_F(OptionSetTest, ChecksAndHelpsWithoutRunning) {
  EXPECT_EQ(*Load({"--check-config"}), OptionSet::Outcome::kExit);
  EXPECT_EQ(out_.str(), "");
  EXPECT_FALSE(Load({"--check-config", "--engine-threads", "0"}).ok());
  EXPECT_EQ(*Load({"--help"}), OptionSet::Outcome::kExit);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("--engine-threads"), HasSubstr("how long to wait")));
  EXPECT_EQ(*Load({"--version"}), OptionSet::Outcome::kExit);
  EXPECT_THAT(out_.str(), HasSubstr("1.2.3"));
  EXPECT_EQ(*Load({}), OptionSet::Outcome::kRun);
}

TEST(Nearest, IsTheWordOfTheFewestEdits) {
  EXPECT_EQ(Nearest("lisen", {"listen", "log_level"}), "listen");
  EXPECT_EQ(Nearest("zzzzzzzzzz", {"listen", "log_level"}), "");
  EXPECT_EQ(Nearest("x", {}), "");
}

}  // namespace
}  // namespace egeria::config

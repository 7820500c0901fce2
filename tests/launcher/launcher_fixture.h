#ifndef EGERIA_TESTS_LAUNCHER_LAUNCHER_FIXTURE_H_
#define EGERIA_TESTS_LAUNCHER_LAUNCHER_FIXTURE_H_

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_folder.h"

// egeria-run with shell scripts in the place of the programs that it starts.
namespace egeria::run {

inline constexpr char kTorchrunThatTells[] = R"(
for argument; do echo "argument $argument"; done
echo "controller $EGERIA_CONTROLLER"
echo "job $EGERIA_JOB_ID"
echo "cache $EGERIA_CACHE"
echo "node $EGERIA_NODE"
echo "name $EGERIA_TRAINING_JOB"
echo "path $PATH"
exit 0
)";

// Says that it runs, then which signal it got.
inline constexpr char kTorchrunThatWaits[] = R"(
for name in INT HUP TERM USR1; do trap "echo got $name" $name; done
trap 'echo got TERM; exit 3' TERM
echo "running $$"
while :; do sleep 0.05; done
)";

class RunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // A copy, so that nothing lies beside it but what the test puts there.
    std::filesystem::create_directories(folder_ / "bin");
    std::filesystem::create_directories(folder_ / "tmp");
    std::filesystem::copy_file(EGERIA_RUN, folder_ / "bin/egeria-run");
  }

  void Script(const std::string& name, const std::string& body) {
    const std::string path = folder_ / name;
    std::ofstream(path) << "#!/bin/sh\n" << body;
    chmod(path.c_str(), 0755);
  }

  // `errors`: a file for its standard error.
  absl::StatusOr<testing::ChildProcess> Start(const std::vector<std::string>& arguments,
                                              const std::vector<std::string>& environment = {},
                                              const std::string& errors = "stderr") {
    std::vector<std::string> command = {folder_ / "bin/egeria-run"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    std::vector<std::string> all = {"EGERIA_CONTROLLER",
                                    "EGERIA_JOB_ID",
                                    "EGERIA_TORCHRUN",
                                    "EGERIA_TRAINING_JOB",
                                    "VIRTUAL_ENV",
                                    "XDG_RUNTIME_DIR",
                                    "TMPDIR=" + (folder_ / "tmp"),
                                    "LOG=" + folder_.path(),
                                    "PATH=/usr/bin:/bin",
                                    "EGERIA_CACHE=none"};
    all.insert(all.end(), environment.begin(), environment.end());
    return testing::ChildProcess::Start(command, all, folder_ / errors);
  }

  struct Result {
    int code = 0;
    std::string output;
    std::string error;
  };
  Result Run(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {}) {
    auto process = Start(arguments, environment);
    EXPECT_TRUE(process.ok()) << process.status();
    if (!process.ok()) return {};
    Result result;
    result.output = process->ReadAll();
    result.code = process->Wait();
    result.error = Contents("stderr");
    return result;
  }

  std::string Contents(const std::string& name) const {
    std::ifstream file(folder_ / name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // The number in a file; -1 where there is none.
  pid_t Pid(const std::string& name) const {
    int pid = -1;
    (void)absl::SimpleAtoi(Contents(name), &pid);
    return pid;
  }
  // Whether the condition comes true, for which it waits half a minute at most.
  static bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 3000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return condition();
  }
  bool TmpIsEmpty() const { return std::filesystem::is_empty(folder_ / "tmp"); }

  testing::TempFolder folder_;
};

// "argument x" lines of the output, without the word.
inline std::vector<std::string> Told(const std::string& output, const std::string& word) {
  std::vector<std::string> values;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(word + " ", 0) == 0) values.push_back(line.substr(word.size() + 1));
  }
  return values;
}

}  // namespace egeria::run

#endif  // EGERIA_TESTS_LAUNCHER_LAUNCHER_FIXTURE_H_

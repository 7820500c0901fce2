// egeria-run with shell scripts in the place of torchrun and egeria-controller.
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/base/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/launcher/launcher_fixture.h"

namespace egeria::run {
namespace {

using egeria::testing::WaitUntilGone;
using ::testing::HasSubstr;
using ::testing::Not;

// Says its process id and its arguments, each on a line, is ready, and ends at SIGTERM.
constexpr char kController[] = R"(
echo "$$" >> "$LOG/controller.pid"
for argument; do echo "$argument" >> "$LOG/controller.arguments"; done
while [ $# -gt 0 ]; do
  case $1 in
    --ready-fd) ready=$2 ;;
    --state-dir) mkdir -p "$2"; echo journal > "$2/journal"; echo "$2" > "$LOG/state" ;;
    --listen) : > "${2#unix:}"; echo "${2#unix:}" > "$LOG/socket" ;;
  esac
  shift
done
trap 'echo ended >> "$LOG/controller.end"; exit 0' TERM
eval "echo READY=1 >&$ready; exec $ready>&-"
while :; do sleep 0.05; done
)";

TEST_F(RunTest, PassesTorchrunsArgumentsOnUntouched) {
  Script("bin/torchrun", kTorchrunThatTells);
  const std::vector<std::string> arguments = {
      "--nproc-per-node", "2", "--rdzv-conf=a=1,b=2", "train.py", "--x=a b", "*", "$HOME", "-h", "--", "'"};
  std::vector<std::string> all = {"--egeria-controller", "none"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const Result result = Run(all);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(Told(result.output, "argument"), arguments);
  EXPECT_EQ(result.error, "");
}

TEST_F(RunTest, StartsAControllerForTheJobAndEndsItAfterwards) {
  Script("bin/torchrun", kTorchrunThatTells);
  Script("bin/egeria-controller", kController);
  const Result result = Run({"--egeria-name", "digits", "train.py"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(Told(result.output, "controller").at(0),
            "unix:" + Contents("socket").substr(0, Contents("socket").size() - 1));
  EXPECT_TRUE(JobId(Told(result.output, "job").at(0)).IsValid());
  EXPECT_EQ(Told(result.output, "name").at(0), "digits");
  EXPECT_FALSE(Told(result.output, "node").at(0).empty());
  EXPECT_EQ(Contents("controller.end"), "ended\n");
  EXPECT_TRUE(WaitUntilGone(Pid("controller.pid")));
  EXPECT_TRUE(TmpIsEmpty());
  EXPECT_EQ(result.error, "");
}

TEST_F(RunTest, GivesEveryJobAnIdOfItsOwnUnlessItHasOne) {
  Script("bin/torchrun", kTorchrunThatTells);
  const std::string first = Told(Run({"--egeria-controller", "none", "t.py"}).output, "job").at(0);
  const std::string second = Told(Run({"--egeria-controller", "none", "t.py"}).output, "job").at(0);
  EXPECT_NE(first, second);
  EXPECT_EQ(Told(Run({"t.py"}, {"EGERIA_CONTROLLER=none", "EGERIA_JOB_ID=" + first}).output, "job").at(0), first);
}

TEST_F(RunTest, KeepsTheJournalWhereItIsTold) {
  Script("bin/torchrun", kTorchrunThatTells);
  Script("bin/egeria-controller", kController);
  EXPECT_EQ(Run({"--egeria-state-dir", folder_ / "kept", "t.py"}).code, 0);
  EXPECT_EQ(Contents("kept/journal"), "journal\n");
  EXPECT_TRUE(TmpIsEmpty());
}

TEST_F(RunTest, LeavesTheJournalToTheControllersOwnVariable) {
  Script("bin/torchrun", "exit 0");
  Script("bin/egeria-controller", kController);
  EXPECT_EQ(Run({"t.py"}, {"EGERIA_CONTROLLER_STATE_DIR=/kept"}).code, 0);
  EXPECT_THAT(Contents("controller.arguments"), Not(HasSubstr("--state-dir")));
}

TEST_F(RunTest, ServesTheProcessThatStartedItUntilItsInputEnds) {
  Script("bin/egeria-controller", kController);
  const std::string beside = folder_ / "tmp/egeria-run-given";
  std::filesystem::create_directories(beside);
  auto process = Start({"--egeria-beside", beside});
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_TRUE(Eventually([&] { return Contents("socket") == beside + "/controller.sock\n"; }));
  process->CloseStdin();
  EXPECT_EQ(process->Wait(), 0);
  EXPECT_EQ(Contents("controller.end"), "ended\n");
  EXPECT_TRUE(WaitUntilGone(Pid("controller.pid")));
  EXPECT_TRUE(TmpIsEmpty());
  EXPECT_EQ(Contents("stderr"), "");
}

TEST_F(RunTest, ServesAProcessUntilThatEndsThoughItsInputIsHeldOpen) {
  Script("bin/egeria-controller", kController);
  const std::string beside = folder_ / "tmp/egeria-run-given";
  std::filesystem::create_directories(beside);
  Script("bin/trainer", "exec 3<&0; \"" + (folder_ / "bin/egeria-run") + "\" --egeria-beside \"" + beside +
                            "\" <&3 & echo running; while :; do sleep 0.05; done");
  auto process = testing::ChildProcess::Start({folder_ / "bin/trainer"},
                                              {"EGERIA_CONTROLLER", "EGERIA_CACHE=none", "LOG=" + folder_.path()},
                                              folder_ / "errors");
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_TRUE(Eventually([&] { return Pid("controller.pid") > 0; }));
  process->Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return TmpIsEmpty(); })) << "this test holds the other end of its input";
  EXPECT_TRUE(WaitUntilGone(Pid("controller.pid")));
}

TEST_F(RunTest, ServesNobodyWithoutAController) {
  Script("bin/egeria-controller", "echo 'the journal is locked' >&2; exit 1");
  std::filesystem::create_directories(folder_ / "tmp/egeria-run-given");
  const Result result = Run({"--egeria-beside", folder_ / "tmp/egeria-run-given"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.error, HasSubstr("could not start"));
  EXPECT_TRUE(TmpIsEmpty());
}

TEST_F(RunTest, LeavesNoFolderWhereItHasNoControllerOfItsOwn) {
  const std::string beside = folder_ / "tmp/egeria-run-given";
  std::filesystem::create_directories(beside);
  auto process = Start({"--egeria-beside", beside, "--egeria-controller", "none"});
  ASSERT_TRUE(process.ok()) << process.status();
  process->CloseStdin();
  EXPECT_EQ(process->Wait(), 0);
  EXPECT_TRUE(TmpIsEmpty());
}

TEST_F(RunTest, HandsTheConfigurationToTheController) {
  Script("bin/torchrun", kTorchrunThatTells);
  Script("bin/egeria-controller", kController);
  EXPECT_EQ(Run({"t.py"}).code, 0);
  EXPECT_THAT(Contents("controller.arguments"), HasSubstr("--metrics-listen\nnone\n"));
  std::filesystem::remove(folder_ / "controller.arguments");
  EXPECT_EQ(Run({"--egeria-config", "/c.yaml", "--egeria-metrics", "127.0.0.1:0", "t.py"}).code, 0);
  EXPECT_THAT(Contents("controller.arguments"), HasSubstr("--config\n/c.yaml\n--metrics-listen\n127.0.0.1:0\n"));
  EXPECT_THAT(Contents("controller.arguments"), Not(HasSubstr("--log-level")));
}

TEST_F(RunTest, ReturnsTorchrunsExitCode) {
  for (int code : {1, 42, 255}) {
    Script("bin/torchrun", "exit " + std::to_string(code));
    EXPECT_EQ(Run({"--egeria-controller", "none", "t.py"}).code, code);
  }
  Script("bin/torchrun", "kill -KILL $$");
  EXPECT_EQ(Run({"--egeria-controller", "none", "t.py"}).code, 128 + SIGKILL);
}

TEST_F(RunTest, PassesSignalsOnAndStillCleansUp) {
  Script("bin/torchrun", kTorchrunThatWaits);
  Script("bin/egeria-controller", kController);
  auto process = Start({"t.py"});
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_THAT(process->ReadLine().value_or(""), HasSubstr("running"));
  for (const auto& [number, name] : std::map<int, std::string>{{SIGINT, "INT"}, {SIGHUP, "HUP"}, {SIGUSR1, "USR1"}}) {
    process->Signal(number);
    EXPECT_EQ(process->ReadLine(), "got " + name);
  }
  process->Signal(SIGTERM);
  EXPECT_EQ(process->ReadLine(), "got TERM");
  EXPECT_EQ(process->Wait(), 3);
  EXPECT_EQ(Contents("controller.end"), "ended\n");
  EXPECT_TRUE(TmpIsEmpty());
}

TEST_F(RunTest, SaysHowItEndedWhenASignalEndedTorchrun) {
  Script("bin/torchrun", "echo running; while :; do sleep 0.05; done");
  auto process = Start({"--egeria-controller", "none", "t.py"});
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_EQ(process->ReadLine(), "running");
  process->Signal(SIGTERM);
  EXPECT_EQ(process->Wait(), 128 + SIGTERM);
}

TEST_F(RunTest, LeavesNoProcessBehindWhenItIsKilled) {
  Script("bin/torchrun", kTorchrunThatWaits);
  Script("bin/egeria-controller", kController);
  auto process = Start({"t.py"});
  ASSERT_TRUE(process.ok()) << process.status();
  int torchrun = -1;
  ASSERT_TRUE(absl::SimpleAtoi(process->ReadLine().value_or("running -1").substr(8), &torchrun));
  const pid_t controller = Pid("controller.pid");
  ASSERT_GT(controller, 0);
  process->Signal(SIGKILL);
  EXPECT_EQ(process->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(WaitUntilGone(torchrun));
  EXPECT_TRUE(WaitUntilGone(controller));

  EXPECT_FALSE(TmpIsEmpty());
  std::filesystem::create_directories(folder_ / "tmp/egeria-run-other");  // without a lock file: not ours to judge
  Script("bin/torchrun", "exit 0");
  EXPECT_EQ(Run({"t.py"}).code, 0);
  std::filesystem::remove(folder_ / "tmp/egeria-run-other");
  EXPECT_TRUE(TmpIsEmpty()) << "the next one tidies up";
}

TEST_F(RunTest, LeavesTheFolderOfAnotherLivingOneAlone) {
  Script("bin/egeria-controller", kController);
  Script("bin/torchrun", kTorchrunThatWaits);
  auto process = Start({"t.py"});
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_THAT(process->ReadLine().value_or(""), HasSubstr("running"));
  const std::string state = Contents("state");
  Script("bin/torchrun", "exit 0");
  EXPECT_EQ(Run({"t.py"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(state.substr(0, state.size() - 1)));
  process->Signal(SIGTERM);
  EXPECT_EQ(process->Wait(), 3);
}

TEST_F(RunTest, EndsAControllerThatDoesNotListenToSigterm) {
  Script("bin/torchrun", "exit 0");
  std::string stubborn = kController;
  stubborn.replace(stubborn.find("trap 'echo ended"), 4, "trap '' TERM; : ");
  Script("bin/egeria-controller", stubborn);
  auto process = Start({"t.py"});
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(process->Wait(), 0);
  EXPECT_TRUE(WaitUntilGone(Pid("controller.pid")));
  EXPECT_TRUE(TmpIsEmpty());
}

TEST_F(RunTest, TrainsWithoutAControllerThatNeverBecomesReady) {
  Script("bin/torchrun", kTorchrunThatTells);
  Script("bin/egeria-controller", "echo $$ > $LOG/controller.pid; while :; do sleep 0.05; done");
  const Result result = Run({"--egeria-ready-timeout", "0.3", "t.py"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.error, HasSubstr("not ready after 300ms"));
  EXPECT_THAT(Told(result.output, "controller").at(0), HasSubstr("unix:"));
  EXPECT_TRUE(WaitUntilGone(Pid("controller.pid")));
  EXPECT_TRUE(TmpIsEmpty());
}

TEST_F(RunTest, EndsAtASignalThatComesWhileTheControllerStarts) {
  Script("bin/torchrun", "echo started");
  Script("bin/egeria-controller", "echo $$ > $LOG/controller.pid; echo starting; while :; do sleep 0.05; done");
  auto process = Start({"--egeria-ready-timeout", "60", "t.py"});
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_EQ(process->ReadLine(), "starting");
  process->Signal(SIGTERM);
  EXPECT_EQ(process->ReadAll(), "");
  EXPECT_EQ(process->Wait(), 128 + SIGTERM);
  EXPECT_TRUE(WaitUntilGone(Pid("controller.pid")));
  EXPECT_TRUE(TmpIsEmpty());
}

TEST_F(RunTest, TrainsWithoutAControllerThatCannotStart) {
  Script("bin/torchrun", kTorchrunThatTells);
  Script("bin/egeria-controller", "echo 'the journal is locked' >&2; exit 1");
  const Result result = Run({"t.py"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.error, HasSubstr("the journal is locked"));
  EXPECT_THAT(result.error, HasSubstr("could not start"));
  EXPECT_EQ(Told(result.output, "argument").at(0), "t.py");
}

TEST_F(RunTest, TrainsWithoutAControllerWhereThereIsNone) {
  Script("bin/torchrun", kTorchrunThatTells);
  const Result result = Run({"t.py"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(Told(result.output, "controller").at(0), "none");
  EXPECT_THAT(result.error, HasSubstr("egeria-controller is in none of"));
}

TEST_F(RunTest, GoesOnTrainingWhenItsControllerDies) {
  Script("bin/torchrun",
         "kill -9 $(cat $LOG/controller.pid)\nwhile ! grep -q 'has ended' $LOG/stderr; do sleep 0.05; done\n"
         "exit 5");
  Script("bin/egeria-controller", kController);
  const Result result = Run({"t.py"});
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.error, HasSubstr("Training goes on"));
  EXPECT_TRUE(TmpIsEmpty());
}

TEST_F(RunTest, AdoptsAControllerThatAnswersAndStartsNone) {
  Script("bin/torchrun", kTorchrunThatTells);
  Script("bin/egeria-controller", kController);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, (folder_ / "other").c_str(), sizeof(name.sun_path) - 1);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  const Result result = Run({"t.py"}, {"EGERIA_CONTROLLER=unix:" + (folder_ / "other")});
  close(listener);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(Told(result.output, "controller").at(0), "unix:" + (folder_ / "other"));
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(Contents("controller.pid"), "");
}

TEST_F(RunTest, WarnsOnceOfAGivenControllerThatDoesNotAnswerAndTrains) {
  Script("bin/torchrun", kTorchrunThatTells);
  const Result result = Run({"--egeria-controller", "unix:" + (folder_ / "nobody"), "t.py"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.error, HasSubstr("does not answer"));
  EXPECT_EQ(Told(result.output, "controller").at(0), "unix:" + (folder_ / "nobody"));
}

TEST_F(RunTest, StartsNoControllerOnEachOfSeveralNodes) {
  Script("bin/torchrun", kTorchrunThatTells);
  Script("bin/egeria-controller", kController);
  const Result result = Run({"--nnodes", "2", "t.py"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(Told(result.output, "controller").at(0), "none");
  EXPECT_THAT(result.error, HasSubstr("EGERIA_CONTROLLER"));
}

TEST_F(RunTest, FindsTorchrunInTheEnvironmentOrInPath) {
  std::filesystem::create_directories(folder_ / "venv/bin");
  std::filesystem::create_directories(folder_ / "path");
  Script("named", "exit 11");
  Script("venv/bin/torchrun", "exit 12");
  Script("path/torchrun", "exit 13");
  const std::vector<std::string> arguments = {"--egeria-controller", "none", "t.py"};
  const std::string path = "PATH=" + (folder_ / "path") + ":/usr/bin:/bin", venv = "VIRTUAL_ENV=" + (folder_ / "venv");
  EXPECT_EQ(Run(arguments, {venv, "EGERIA_TORCHRUN=" + (folder_ / "named")}).code, 11);
  EXPECT_EQ(Run(arguments, {venv}).code, 12);
  Script("bin/torchrun", "exit 14");
  EXPECT_EQ(Run(arguments, {venv}).code, 14);
  std::filesystem::remove(folder_ / "bin/torchrun");
  EXPECT_EQ(Run(arguments, {path}).code, 13);
}

TEST_F(RunTest, SaysWhatToDoWhereTorchrunIsMissing) {
  const Result result = Run({"t.py"}, {"EGERIA_TORCHRUN=/nowhere/torchrun"});
  EXPECT_EQ(result.code, 127);
  EXPECT_THAT(result.error, HasSubstr("/nowhere/torchrun"));
  EXPECT_THAT(result.error, HasSubstr("EGERIA_TORCHRUN"));
}

TEST_F(RunTest, LetsBareProgramNamesFindWhatLiesBesideIt) {
  Script("bin/torchrun", "egeria-train");
  Script("bin/egeria-train", "echo trained");
  EXPECT_EQ(Run({"--egeria-controller", "none", "--no-python", "egeria-train"}).output, "trained\n");
  EXPECT_NE(Run({"--egeria-controller", "none", "egeria-train"}).code, 0);
}

TEST_F(RunTest, ExplainsItselfAndPointsToTorchrunsHelp) {
  const Result result = Run({"--help"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.output, HasSubstr("--egeria-controller"));
  EXPECT_THAT(result.output, HasSubstr("torchrun --help"));
  EXPECT_EQ(Run({}).code, 2);
  EXPECT_EQ(Run({"--egeria-unknown", "1", "t.py"}).code, 2);
}

}  // namespace
}  // namespace egeria::run

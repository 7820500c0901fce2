// egeria-run with a real egeria-cache, and a shell script in the place of torchrun.
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/file_lock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/launcher/launcher_fixture.h"
#include "worker/cache/entry/cache_folder.h"

namespace egeria::run {
namespace {

using egeria::testing::ChildProcess;
using egeria::testing::WaitUntilGone;
using ::testing::HasSubstr;
using ::testing::SizeIs;

bool Lives(pid_t pid) { return kill(pid, 0) == 0; }

// A daemon that ends although it is used does so within this time, unless the machine is very busy.
bool LivesOn(pid_t pid) {
  for (int i = 0; i < 20; ++i) {
    if (!Lives(pid)) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

class RunCacheTest : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    Script("bin/egeria-cache", "echo $$ >> $LOG/cache.pids\nexec " EGERIA_CACHE " \"$@\"");
    Script("bin/torchrun", kTorchrunThatTells);
  }

  // A job that says which cache it has, and waits for SIGTERM.
  ChildProcess StartJob(std::string errors = "stderr", std::vector<std::string> environment = {}) {
    Script("bin/torchrun", std::string("echo \"cache $EGERIA_CACHE\"\n") + kTorchrunThatWaits);
    auto process = Start({"--egeria-controller", "none", "--egeria-cache", store_, "t.py"}, environment, errors);
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  }
  static std::string CacheOf(ChildProcess* job) {
    const std::string cache = job->ReadLine().value_or("");
    EXPECT_THAT(job->ReadLine().value_or(""), HasSubstr("running"));
    return cache;
  }
  static void EndJob(ChildProcess* job) {
    job->Signal(SIGTERM);
    job->ReadAll();  // to the end: a daemon that goes on must not keep it open
    EXPECT_EQ(job->Wait(), 3);
  }

  std::vector<pid_t> Daemons() const {
    std::vector<pid_t> pids;
    for (const auto& line : absl::StrSplit(Contents("cache.pids"), '\n', absl::SkipEmpty())) {
      pids.push_back(-1);
      EXPECT_TRUE(absl::SimpleAtoi(line, &pids.back()));
    }
    return pids;
  }

  const std::string store_ = folder_ / "store";
  const std::string address_ = cache::DefaultAddress(store_);
};

TEST_F(RunCacheTest, StartsACacheForTheJobAndEndsItAfterwards) {
  ChildProcess job = StartJob();
  EXPECT_EQ(CacheOf(&job), "cache " + address_);
  ASSERT_THAT(Daemons(), SizeIs(1));
  EXPECT_TRUE(Lives(Daemons()[0]));
  EXPECT_NE(getsid(Daemons()[0]), getsid(job.pid())) << "Ctrl-C and the terminal's end would reach it";
  EndJob(&job);
  EXPECT_FALSE(Lives(Daemons()[0])) << "egeria-run waits for it";
  EXPECT_EQ(Contents("stderr"), "");
}

TEST_F(RunCacheTest, TakesTheUsersCacheFolderWhereNothingIsSaid) {
  // EGERIA_CACHE_USE and EGERIA_CACHE_COMPRESSION are none of the daemon's options.
  const Result result =
      Run({"--egeria-controller", "none", "t.py"},
          {"EGERIA_CACHE", "EGERIA_CACHE_FOLDER=" + store_, "EGERIA_CACHE_USE=always", "EGERIA_CACHE_COMPRESSION=lz4"});
  EXPECT_EQ(Told(result.output, "cache").at(0), address_) << result.error;
  ASSERT_THAT(Daemons(), SizeIs(1));
}

TEST_F(RunCacheTest, ACacheServesTheNextJobBeyondTheEndOfTheFirst) {
  ChildProcess first = StartJob("first");
  CacheOf(&first);
  ChildProcess second = StartJob("second");
  EXPECT_EQ(CacheOf(&second), "cache " + address_);
  ASSERT_THAT(Daemons(), SizeIs(1));
  EndJob(&first);
  EXPECT_TRUE(LivesOn(Daemons()[0]));
  EndJob(&second);
  EXPECT_TRUE(WaitUntilGone(Daemons()[0]));
  EXPECT_EQ(Contents("first") + Contents("second"), "");
}

TEST_F(RunCacheTest, ACacheOutlivesAKilledJobOnlyAsLongAsAnotherUsesIt) {
  ChildProcess first = StartJob("first");
  CacheOf(&first);
  ChildProcess second = StartJob("second");
  CacheOf(&second);
  first.Signal(SIGKILL);
  EXPECT_EQ(first.Wait(), 128 + SIGKILL);
  ASSERT_THAT(Daemons(), SizeIs(1));
  EXPECT_TRUE(LivesOn(Daemons()[0]));
  second.Signal(SIGKILL);
  EXPECT_EQ(second.Wait(), 128 + SIGKILL);
  EXPECT_TRUE(WaitUntilGone(Daemons()[0]));
}

TEST_F(RunCacheTest, OfJobsThatStartAtTheSameMomentOneStartsTheCache) {
  std::vector<ChildProcess> jobs;
  for (int i = 0; i < 4; ++i) jobs.push_back(StartJob("stderr" + std::to_string(i)));
  for (ChildProcess& job : jobs) EXPECT_EQ(CacheOf(&job), "cache " + address_);
  EXPECT_THAT(Daemons(), SizeIs(1));
  for (ChildProcess& job : jobs) EndJob(&job);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Contents("stderr" + std::to_string(i)), "");
}

TEST_F(RunCacheTest, AJobThatComesWhileACacheEndsWaitsAndStartsAnother) {
  ASSERT_TRUE(cache::MakeFolder(store_).ok());
  auto ending = FileLock::Try(cache::UsersFile(store_), FileLock::Kind::kExclusive);
  ASSERT_TRUE(ending.ok()) << ending.status();
  ChildProcess job = StartJob();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_THAT(Daemons(), SizeIs(0));
  {
    const FileLock ended = *std::move(ending);
  }
  EXPECT_EQ(CacheOf(&job), "cache " + address_);
  EndJob(&job);
  EXPECT_EQ(Contents("stderr"), "");
}

TEST_F(RunCacheTest, StartsACacheAgainThatHasEnded) {
  Script("bin/torchrun",
         "kill -9 $(cat $LOG/cache.pids)\n"
         "while [ $(wc -l < $LOG/cache.pids) = 1 ] || ! [ -S $LOG/store/cache.sock ]; do sleep 0.05; done\n"
         "while ! grep -q 'first time' $LOG/stderr; do sleep 0.05; done\nexit 5");
  const Result result = Run({"--egeria-controller", "none", "--egeria-cache", store_, "t.py"});
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.error, HasSubstr("The cache has ended. It is started again in 1s. Training goes on"));
  EXPECT_THAT(result.error, HasSubstr("The cache is started again, for the first time."));
  ASSERT_THAT(Daemons(), SizeIs(2));
  EXPECT_TRUE(WaitUntilGone(Daemons()[1])) << "it ends with the job";
}

TEST_F(RunCacheTest, DoesNotStartACacheAFourthTime) {
  Script("bin/egeria-cache",
         "echo $$ >> $LOG/cache.pids\n[ $(wc -l < $LOG/cache.pids) = 1 ] || exit 1\nexec " EGERIA_CACHE " \"$@\"");
  Script("bin/torchrun",
         "kill -9 $(cat $LOG/cache.pids)\n"
         "while ! grep -q 'fourth' $LOG/stderr; do sleep 0.05; done\nexit 5");
  const Result result = Run({"--egeria-controller", "none", "--egeria-cache", store_, "t.py"});
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.error, HasSubstr("The cache has ended again, and is not started a fourth time; " + store_));
  EXPECT_THAT(Daemons(), SizeIs(4));
}

TEST_F(RunCacheTest, AdoptsACacheThatSomebodyElseHasStarted) {
  auto daemon = ChildProcess::Start({EGERIA_CACHE, "--folder", store_, "--ready-fd", "1"}, {}, folder_ / "log");
  ASSERT_TRUE(daemon.ok());
  ASSERT_EQ(daemon->ReadLine(), "READY=1");
  for (const std::string& given : {store_, address_}) {
    const Result result = Run({"--egeria-controller", "none", "--egeria-cache", given, "t.py"});
    EXPECT_EQ(Told(result.output, "cache").at(0), address_);
    EXPECT_EQ(result.error, "");
  }
  EXPECT_TRUE(LivesOn(daemon->pid()));
  EXPECT_THAT(Daemons(), SizeIs(0));
}

TEST_F(RunCacheTest, DoesWithoutACacheWhereItIsTold) {
  for (const char* off : {"none", ""}) {
    const Result result = Run({"--egeria-controller", "none", "t.py"}, {std::string("EGERIA_CACHE=") + off});
    EXPECT_EQ(Told(result.output, "cache").at(0), "none");
    EXPECT_EQ(result.error, "");
  }
  EXPECT_THAT(Daemons(), SizeIs(0));
}

// The message of each case stands on one line, and tells what to do.
class RunWithoutCacheTest : public RunCacheTest {
 protected:
  std::string Warning(const std::string& cache, std::vector<std::string> environment = {}) {
    const Result result = Run(
        {"--egeria-controller", "none", "--egeria-ready-timeout", "20", "--egeria-cache", cache, "t.py"}, environment);
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(Told(result.output, "cache").at(0), "none");
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
    EXPECT_THAT(result.error, HasSubstr("--egeria-cache DIR"));
    return result.error;
  }
};

TEST_F(RunWithoutCacheTest, TrainsWhereTheFolderCannotBeMade) {
  std::ofstream(folder_ / "file") << "no folder";
  EXPECT_THAT(Warning(folder_ / "file/store"), HasSubstr("[STORE]"));
  EXPECT_THAT(Warning(folder_ / "file"), HasSubstr("file"));
}

TEST_F(RunWithoutCacheTest, TrainsWhereTheFolderCannotBeWritten) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  std::filesystem::create_directories(store_);
  std::filesystem::permissions(store_, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_THAT(Warning(store_), HasSubstr("Permission denied"));
}

TEST_F(RunWithoutCacheTest, TrainsWhereTheDiskIsFull) {
  const std::string disk = folder_ / "disk";
  std::filesystem::create_directories(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0) GTEST_SKIP() << "only root may mount";
  const std::string warning = Warning(disk + "/store");
  umount(disk.c_str());
  EXPECT_THAT(warning, HasSubstr("its disk is full"));
}

// Its end is no reason not to wait for the cache.
TEST_F(RunCacheTest, StartsACacheBesideAControllerThatCannotStart) {
  Script("bin/egeria-controller", "exit 1");
  const Result result = Run({"--egeria-cache", store_, "t.py"});
  EXPECT_EQ(Told(result.output, "cache").at(0), address_) << result.error;
  EXPECT_THAT(result.error, HasSubstr("The controller could not start"));
  EXPECT_FALSE(Lives(Daemons().at(0)));
}

TEST_F(RunWithoutCacheTest, TrainsWhereAnotherOneHasTheFolderAndDoesNotAnswer) {
  auto daemon = ChildProcess::Start(
      {EGERIA_CACHE, "--folder", store_, "--listen", "unix:" + (folder_ / "elsewhere"), "--ready-fd", "1"}, {},
      folder_ / "log");
  ASSERT_TRUE(daemon.ok());
  ASSERT_EQ(daemon->ReadLine(), "READY=1");
  EXPECT_THAT(Warning(store_), HasSubstr("[STORE_IN_USE] another egeria-cache uses " + store_));
}

TEST_F(RunWithoutCacheTest, TrainsWhereTheDaemonsOptionsAreWrong) {
  EXPECT_THAT(Warning(store_, {"EGERIA_CACHE_QUOTA=lots"}), HasSubstr(store_ + "/egeria-cache.log"));
  EXPECT_THAT(Contents("store/egeria-cache.log"), HasSubstr("EGERIA_CACHE_QUOTA"));
}

TEST_F(RunWithoutCacheTest, TrainsWhereThereIsNoProgram) {
  std::filesystem::remove(folder_ / "bin/egeria-cache");
  EXPECT_THAT(Warning(store_), HasSubstr("egeria-cache is in none of"));
}

}  // namespace
}  // namespace egeria::run

// When an egeria-cache with until_unused ends.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/file_lock.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_folder.h"
#include "worker/cache/client/cache_client.h"
#include "worker/cache/entry/cache_folder.h"

namespace egeria::cache {
namespace {

class UntilUnusedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeFolder(store_).ok());
    auto use = FileLock::Try(UsersFile(store_), FileLock::Kind::kShared);
    ASSERT_TRUE(use.ok()) << use.status();
    use_.emplace(*std::move(use));
    auto daemon = testing::ChildProcess::Start({EGERIA_CACHE, "--folder", store_, "--until-unused", "--ready-fd", "1"},
                                               {}, folder_ / "log");
    ASSERT_TRUE(daemon.ok());
    daemon_.emplace(*std::move(daemon));
    ASSERT_EQ(daemon_->ReadLine(), "READY=1");
  }

  std::unique_ptr<CacheClient> Attach() {
    CacheClient::Options options;
    options.address = *rpc::ParseAddress(DefaultAddress(store_));
    options.name = JobId::Random();
    options.shared_bytes = size_t{1} << 20;
    auto client = CacheClient::Start(options);
    for (int i = 0; i < 2'000 && !client->attached(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(client->attached());
    return client;
  }
  bool LivesOn() {
    for (int i = 0; i < 20; ++i) {
      if (kill(daemon_->pid(), 0) != 0 || !std::filesystem::exists(store_ + "/cache.sock")) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return true;
  }

  testing::TempFolder folder_;
  const std::string store_ = folder_ / "store";
  std::optional<FileLock> use_;
  std::optional<testing::ChildProcess> daemon_;
};

TEST_F(UntilUnusedTest, ItStaysWhileTheFolderIsUsed) {
  EXPECT_TRUE(LivesOn());
  use_.reset();
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(UntilUnusedTest, ItStaysWhileATrainingProcessIsAttached) {
  auto client = Attach();
  use_.reset();
  EXPECT_TRUE(LivesOn());
  client.reset();
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(UntilUnusedTest, SigtermEndsItAtOnce) {
  auto client = Attach();
  daemon_->Signal(SIGTERM);
  EXPECT_EQ(daemon_->Wait(), 0);
}

TEST_F(UntilUnusedTest, ItEndsWhereItsFolderHasGone) {
  use_.reset();
  std::filesystem::remove_all(store_);
  EXPECT_EQ(daemon_->Wait(), 0);
}

}  // namespace
}  // namespace egeria::cache

#include "worker/cache/cache_client.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_folder.h"

namespace egeria::cache {
namespace {

const JobId kJob("0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11");
const JobId kOther("1b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d22");
constexpr Fingerprint kFirst = {1};
constexpr Fingerprint kSecond = {2};
constexpr int64_t kFloats = 2'000;  // of an activation

bool WaitUntil(const std::function<bool()>& condition, std::chrono::seconds patience = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

// What the prefix gives for a sample: different for each, so that no other one can be taken for it.
std::vector<float> Activation(uint64_t sample) {
  std::vector<float> values(kFloats);
  for (int64_t i = 0; i < kFloats; ++i) values[i] = static_cast<float>(sample * 1'000 + i);
  return values;
}
uint64_t InputHash(uint64_t sample) { return sample * 0x9e3779b97f4a7c15; }

// With a real egeria-cache of its own.
class CacheClientTest : public ::testing::Test {
 protected:
  void SetUp() override { StartDaemon(); }

  void StartDaemon(std::vector<std::string> more = {}) {
    std::vector<std::string> command = {EGERIA_CACHE, "--folder", folder_ / "store", "--keep-free", "0",
                                        "--ready-fd", "1"};
    command.insert(command.end(), more.begin(), more.end());
    auto daemon = testing::ChildProcess::Start(command, {}, folder_ / "log");
    ASSERT_TRUE(daemon.ok());
    daemon_.emplace(*std::move(daemon));
    ASSERT_EQ(daemon_->ReadLine(), "READY=1") << Log();
  }
  void EndDaemon(int signal) {
    daemon_->Signal(signal);
    daemon_->Wait();
    daemon_.reset();
  }
  std::string Log() const {
    std::ifstream file(folder_ / "log");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::unique_ptr<CacheClient> Connect(const JobId& job = kJob, size_t shared_bytes = size_t{1} << 20) {
    CacheClient::Options options;
    options.address = *rpc::ParseAddress("unix:" + (folder_ / "store/cache.sock"));
    options.name = job;
    options.shared_bytes = shared_bytes;
    options.patience = absl::Seconds(2);
    auto client = CacheClient::Start(options);
    EXPECT_TRUE(WaitUntil([&] { return client->attached(); })) << Log();
    return client;
  }

  static size_t EntryBytes() {
    const EntryTensor tensor{DataType::kFloat32, {kFloats}, nullptr};
    return EntrySize(std::span(&tensor, 1));
  }
  static void Offer(CacheClient& client, const Fingerprint& prefix, uint64_t first, uint64_t count) {
    for (uint64_t sample = first; sample < first + count; ++sample) {
      const std::vector<float> values = Activation(sample);
      const EntryTensor tensor{DataType::kFloat32, {kFloats}, reinterpret_cast<const std::byte*>(values.data())};
      client.Offer(prefix, sample, InputHash(sample), std::span(&tensor, 1));
    }
    EXPECT_TRUE(client.Flush(absl::Seconds(20)));
  }
  // How many of these samples are found; each must be the right one.
  static int Find(CacheClient& client, const Fingerprint& prefix, uint64_t first, uint64_t count,
                  uint64_t other_input = 0) {
    std::vector<uint64_t> samples, hashes;
    for (uint64_t sample = first; sample < first + count; ++sample) {
      samples.push_back(sample);
      hashes.push_back(InputHash(sample) + other_input);
    }
    int found = 0;
    client.Lookup(prefix, samples, hashes, EntryBytes(),
                  [&](size_t position, std::span<const EntryTensor> tensors) {
                    ++found;
                    const std::vector<float> expected = Activation(samples[position]);
                    ASSERT_EQ(tensors.size(), 1);
                    EXPECT_EQ(tensors[0].shape, std::vector<int64_t>{kFloats});
                    EXPECT_EQ(std::memcmp(tensors[0].data, expected.data(), kFloats * sizeof(float)), 0);
                  });
    return found;
  }

  testing::TempFolder folder_;
  std::optional<testing::ChildProcess> daemon_;
};

TEST_F(CacheClientTest, FindsWhatWasOfferedAndNothingElse) {
  const auto client = Connect();
  EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
  Offer(*client, kFirst, 0, 300);  // more than fits into the shared memory at once
  EXPECT_EQ(Find(*client, kFirst, 0, 300), 300);
  EXPECT_EQ(Find(*client, kFirst, 295, 10), 5);
  EXPECT_EQ(Find(*client, kSecond, 0, 10), 0);
  EXPECT_EQ(Find(*client, kFirst, 0, 10, /*other_input=*/1), 0);
  const CacheClient::Counters counters = client->counters();
  EXPECT_EQ(counters.stored, 300);
  EXPECT_EQ(counters.hits, 305);
  EXPECT_EQ(counters.absent, 25);
  EXPECT_EQ(counters.other_input, 10);
  EXPECT_EQ(counters.corrupt + counters.late + counters.dropped + counters.refused, 0);
  EXPECT_FALSE(counters.streamed);
}

TEST_F(CacheClientTest, RanksShareAJobsEntriesAndJobsDoNot) {
  const auto one = Connect();
  const auto two = Connect();
  const auto other = Connect(kOther);
  Offer(*one, kFirst, 0, 20);
  Offer(*two, kFirst, 10, 20);  // half of them are there already
  EXPECT_EQ(Find(*two, kFirst, 0, 30), 30);
  EXPECT_EQ(Find(*one, kFirst, 0, 30), 30);
  EXPECT_EQ(Find(*other, kFirst, 0, 30), 0);
}

TEST_F(CacheClientTest, WithoutSharedMemoryTheBytesAreStreamed) {
  const auto client = Connect(kJob, size_t{1} << 50);  // there is not as much
  Offer(*client, kFirst, 0, 300);
  EXPECT_EQ(Find(*client, kFirst, 0, 300), 300);
  EXPECT_TRUE(client->counters().streamed);
}

TEST_F(CacheClientTest, EntriesLargerThanAMessageAreStreamedToo) {
  const auto client = Connect(kJob, size_t{1} << 50);
  std::vector<float> values(1'000'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const EntryTensor tensor{DataType::kFloat32, {1'000'000}, reinterpret_cast<const std::byte*>(values.data())};
  client->Offer(kFirst, 1, 2, std::span(&tensor, 1));
  ASSERT_TRUE(client->Flush(absl::Seconds(20)));
  bool same = false;
  const uint64_t sample = 1, hash = 2;
  client->Lookup(kFirst, std::span(&sample, 1), std::span(&hash, 1), EntrySize(std::span(&tensor, 1)),
                 [&](size_t, std::span<const EntryTensor> found) {
                   same = std::memcmp(found[0].data, values.data(), 4'000'000) == 0;
                 });
  EXPECT_TRUE(same);
}

TEST_F(CacheClientTest, UnfreezingForgetsAPrefixAndFinishingTheJob) {
  const auto client = Connect();
  Offer(*client, kFirst, 0, 10);
  Offer(*client, kSecond, 0, 10);
  client->Drop(kSecond, CacheClient::Scope::kOthers);
  ASSERT_TRUE(client->Flush(absl::Seconds(20)));
  EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
  EXPECT_EQ(Find(*client, kSecond, 0, 10), 10);
  client->Drop(kSecond, CacheClient::Scope::kPrefix);
  ASSERT_TRUE(client->Flush(absl::Seconds(20)));
  EXPECT_EQ(Find(*client, kSecond, 0, 10), 0);
  Offer(*client, kFirst, 0, 10);
  client->Drop({}, CacheClient::Scope::kAll);
  ASSERT_TRUE(client->Flush(absl::Seconds(20)));
  EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
}

TEST_F(CacheClientTest, AKilledDaemonGivesMissesAndARestartedOneGoesOn) {
  const auto client = Connect();
  Offer(*client, kFirst, 0, 100);
  EndDaemon(SIGKILL);
  EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
  EXPECT_GE(client->counters().late, 10);
  Offer(*client, kFirst, 100, 10);  // dropped
  StartDaemon();
  ASSERT_TRUE(WaitUntil([&] { return client->counters().attached == 2; }));
  Find(*client, kFirst, 0, 100);  // what was not written yet is gone; what is found is right
  Offer(*client, kFirst, 0, 100);
  EXPECT_EQ(Find(*client, kFirst, 0, 100), 100);
}

TEST_F(CacheClientTest, AfterAnOrderlyEndAllEntriesAreThere) {
  {
    const auto client = Connect();
    Offer(*client, kFirst, 0, 100);
  }
  EndDaemon(SIGTERM);
  StartDaemon();
  EXPECT_EQ(Find(*Connect(), kFirst, 0, 100), 100);
}

TEST_F(CacheClientTest, AStoppedDaemonIsWaitedForNoLongerThanSaid) {
  const auto client = Connect();
  Offer(*client, kFirst, 0, 10);
  daemon_->Signal(SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(client->counters().late, 10);
  // From then on it is hardly ever asked: a stopped daemon costs next to nothing.
  const auto later = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - later, std::chrono::seconds(5));
  daemon_->Signal(SIGCONT);
  EXPECT_TRUE(WaitUntil([&] { return Find(*client, kFirst, 0, 10) == 10; }));
}

TEST_F(CacheClientTest, FlippedBitsInTheStoreAreNeverAccepted) {
  constexpr uint64_t kSamples = 400;
  {
    const auto client = Connect();
    Offer(*client, kFirst, 0, kSamples);
  }
  std::mt19937_64 random(3);
  int64_t corrupt = 0;
  for (int round = 0; round < 20; ++round) {
    EndDaemon(SIGTERM);
    for (const auto& file : std::filesystem::directory_iterator(folder_ / "store")) {
      if (file.path().extension() != ".blob") continue;
      std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      for (int flip = 0; flip < 5'000; ++flip) {
        const auto at = static_cast<std::streamoff>(random() % file.file_size());
        bytes.seekg(at);
        const char byte = static_cast<char>(bytes.get() ^ (1 << random() % 8));
        bytes.seekp(at);
        bytes.put(byte);
      }
    }
    StartDaemon();
    const auto client = Connect();
    Find(*client, kFirst, 0, kSamples);  // which fails where one is wrong
    corrupt += client->counters().corrupt;
    Offer(*client, kFirst, 0, kSamples);
  }
  EXPECT_GT(corrupt, 0) << "no entry was hit, so that nothing was tried";
}

TEST_F(CacheClientTest, ASecondDaemonOnTheFolderSaysSo) {
  auto second = testing::ChildProcess::Start({EGERIA_CACHE, "--folder", folder_ / "store", "--listen",
                                              "unix:" + (folder_ / "other.sock")}, {}, folder_ / "second");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->Wait(), 1);
  std::ifstream file(folder_ / "second");
  const std::string said{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(said, ::testing::HasSubstr("[STORE_IN_USE]"));
}

TEST_F(CacheClientTest, AForkedChildDoesNothing) {
  const auto client = Connect();
  Offer(*client, kFirst, 0, 10);
  const pid_t child = fork();
  if (child == 0) _exit(Find(*client, kFirst, 0, 10) == 0 && !client->attached() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Find(*client, kFirst, 0, 10), 10);
}

TEST_F(CacheClientTest, WithoutADaemonEverythingIsAMissAndTheEndIsPrompt) {
  EndDaemon(SIGTERM);
  const auto begin = std::chrono::steady_clock::now();
  {
    CacheClient::Options options;
    options.address = *rpc::ParseAddress("unix:" + (folder_ / "nobody.sock"));
    options.name = kJob;
    const auto client = CacheClient::Start(options);
    Offer(*client, kFirst, 0, 10);
    EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
    EXPECT_EQ(client->counters().dropped, 10);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace egeria::cache

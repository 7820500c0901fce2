// The cache and the disk that it lies on, through a real egeria-cache: a disk that fills up, and the quota.
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cache_daemon.h"
#include "tests/support/small_disk.h"

namespace egeria::cache {
namespace {

constexpr Fingerprint kPrefix = {1};
constexpr Fingerprint kOtherPrefix = {2};
constexpr size_t kEntryBytes = size_t{64} << 10;  // bytes of its values
constexpr size_t kShared = size_t{8} << 20;
constexpr absl::Duration kPatience = absl::Seconds(20);
const JobId kDiskJob("0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11");

// Different for each sample, so that no other one can be taken for it.
std::vector<uint64_t> Values(uint64_t sample) {
  std::mt19937_64 random(sample);
  std::vector<uint64_t> values(kEntryBytes / sizeof(uint64_t));
  for (uint64_t& value : values) value = random();
  return values;
}

EntryTensor TensorOf(const std::vector<uint64_t>& values) {
  return {DataType::kInt64, {static_cast<int64_t>(values.size())}, reinterpret_cast<const std::byte*>(values.data())};
}

void Offer(CacheClient& client, const Fingerprint& prefix, std::span<const uint64_t> samples) {
  for (const uint64_t sample : samples) {
    const std::vector<uint64_t> values = Values(sample);
    const EntryTensor tensor = TensorOf(values);
    const CacheClient::Offered entry{sample, sample, {tensor}};
    client.Offer(prefix, std::span(&entry, 1));
  }
  EXPECT_TRUE(client.Flush(absl::Seconds(20)));
}

// The samples that are not found. Those that are found are compared to the bit.
std::vector<uint64_t> Misses(CacheClient& client, const Fingerprint& prefix, std::span<const uint64_t> samples) {
  const std::vector<uint64_t> like(kEntryBytes / sizeof(uint64_t));
  const EntryTensor tensor = TensorOf(like);
  std::vector<bool> found(samples.size(), false);
  client.Lookup(prefix, samples, EntrySize(std::span(&tensor, 1)), [&](size_t position, const Entry& entry) {
    found[position] = true;
    ASSERT_EQ(entry.tensors.size(), 1);
    EXPECT_EQ(std::memcmp(entry.tensors[0].data, Values(samples[position]).data(), kEntryBytes), 0);
    EXPECT_EQ(entry.input_hash, samples[position]);
  });
  std::vector<uint64_t> misses;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!found[i]) misses.push_back(samples[i]);
  }
  return misses;
}

std::vector<uint64_t> Range(uint64_t first, uint64_t count) {
  std::vector<uint64_t> samples(count);
  std::iota(samples.begin(), samples.end(), first);
  return samples;
}

// The room that all files take, as du tells it.
int64_t BytesOnDisk(const std::filesystem::path& folder) {
  int64_t bytes = 0;
  std::error_code gone;
  for (auto file = std::filesystem::directory_iterator(folder, gone); !gone && file != std::filesystem::end(file);
       file.increment(gone)) {
    struct stat info;
    if (lstat(file->path().c_str(), &info) == 0) bytes += static_cast<int64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

TEST(CacheDiskTest, AFullDiskGivesMissesAndIsUsedAgainWhenThereIsSpace) {
  testing::CacheDaemon daemon;
  daemon.End(SIGTERM);
  testing::SmallDisk disk;
  if (const std::string why = disk.Mount(daemon.store()); !why.empty()) {
    GTEST_SKIP() << "needs to mount a small file system, which is not allowed here: " << why;
  }
  daemon.Start({"--write-buffer", "1MiB"});
  const auto client = daemon.Connect(kDiskJob, kShared, kPatience);
  const std::vector<uint64_t> first = Range(0, 60);
  Offer(*client, kPrefix, first);
  const size_t stored = first.size() - Misses(*client, kPrefix, first).size();
  EXPECT_GT(stored, 30) << "the disk may be behind, but not so far";

  // It fills up from outside, while more is offered than it has ever had room for.
  disk.Fill();
  for (uint64_t round = 0; round < 12; ++round) {
    const std::vector<uint64_t> more = Range(1'000 + 100 * round, 100);
    const Fingerprint prefix = round % 3 < 2 ? kPrefix : Fingerprint{static_cast<uint8_t>(10 + round)};
    Offer(*client, prefix, more);
    Misses(*client, prefix, more);
    Misses(*client, kPrefix, first);
    disk.Fill();
  }
  const CacheClient::Counters full = client->counters();
  EXPECT_GT(full.refused, 0) << "the disk was not full";
  EXPECT_EQ(full.late, 0);
  EXPECT_EQ(full.attached, 1) << "the daemon has ended";

  // There is space again: for new samples, and of another prefix too.
  disk.Free();
  uint64_t next = 10'000;
  for (const Fingerprint& prefix : {kPrefix, kOtherPrefix}) {
    EXPECT_TRUE(testing::WaitUntil([&] {
      const std::vector<uint64_t> one = Range(next++, 1);
      Offer(*client, prefix, one);
      return Misses(*client, prefix, one).empty();
    })) << "nothing is stored any more";
  }
  const std::vector<uint64_t> all = Range(20'000, 60);
  for (int round = 0; round < 20; ++round) Offer(*client, kOtherPrefix, Misses(*client, kOtherPrefix, all));
  EXPECT_TRUE(Misses(*client, kOtherPrefix, all).empty());
  EXPECT_EQ(client->counters().attached, 1);

  daemon.End(SIGTERM);
  daemon.Start({"--write-buffer", "1MiB"});
  const auto again = daemon.Connect(kDiskJob, kShared);
  EXPECT_TRUE(Misses(*again, kOtherPrefix, all).empty());
  Misses(*again, kPrefix, first);
  EXPECT_EQ(again->counters().corrupt, 0);

  // It can be ended while the disk is full.
  disk.Fill();
  EXPECT_TRUE(testing::WaitUntil([&] {
    const int64_t refused = again->counters().refused;
    Offer(*again, kPrefix, Range(next, 100));
    next += 100;
    return again->counters().refused > refused;
  }));
  EXPECT_EQ(daemon.End(SIGTERM), 0);
  disk.Free();
  daemon.Start({"--write-buffer", "1MiB"});
  const auto last = daemon.Connect(kDiskJob, kShared);
  EXPECT_TRUE(Misses(*last, kOtherPrefix, all).empty());
}

// Looks at a folder's size all the time.
class DiskWatch {
 public:
  explicit DiskWatch(const std::filesystem::path& folder)
      : thread_([this, folder] {
          while (!stopping_) {
            most_ = std::max<int64_t>(most_, BytesOnDisk(folder));
            ++looks_;
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          }
        }) {}
  ~DiskWatch() {
    stopping_ = true;
    thread_.join();
  }
  int64_t most() const { return most_; }
  int64_t looks() const { return looks_; }

 private:
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> most_{0};
  std::atomic<int64_t> looks_{0};
  std::thread thread_;
};

TEST(CacheDiskTest, OfADataSetFourTimesTheQuotaAFourthIsHitAndTheDiskUseStaysUnderTheQuota) {
  constexpr uint64_t kSamples = 2'000;
  constexpr int64_t kQuota = kSamples * kEntryBytes / 4;
  testing::CacheDaemon daemon({"--quota", std::to_string(kQuota), "--write-buffer", "1MiB"});
  const auto client = daemon.Connect(kDiskJob, kShared, kPatience);
  std::mt19937_64 random(1);
  std::vector<uint64_t> order = Range(0, kSamples);
  const DiskWatch watch(daemon.store());
  // A prefix, and after a switch another one, which finds the disk full of the first one's entries or their remains.
  for (const Fingerprint& prefix : {kPrefix, kOtherPrefix}) {
    // The first epochs fill it: what the disk is too slow for is refused, and offered again in the next one.
    int filled = 0;
    for (int epoch = 0; epoch < 20 && filled < 3; ++epoch) {
      std::shuffle(order.begin(), order.end(), random);
      size_t hits = 0;
      for (size_t at = 0; at < order.size(); at += 50) {
        const std::span<const uint64_t> batch(order.data() + at, 50);
        const std::vector<uint64_t> misses = Misses(*client, prefix, batch);
        hits += batch.size() - misses.size();
        Offer(*client, prefix, misses);
      }
      EXPECT_LT(static_cast<double>(hits), 1.1 * kSamples / 4);
      if (static_cast<double>(hits) > 0.9 * kSamples / 4) ++filled;
      EXPECT_TRUE(filled == 0 || static_cast<double>(hits) > 0.9 * kSamples / 4) << hits;
    }
    EXPECT_EQ(filled, 3);
    EXPECT_EQ(client->counters().late, 0);
    if (prefix == kPrefix) client->Drop(kPrefix);
  }
  EXPECT_GT(watch.most(), kQuota * 8 / 10) << "what is written was not seen";
  EXPECT_LE(watch.most(), kQuota);
  EXPECT_GT(watch.looks(), 100);
  RecordProperty("most_bytes_on_disk_over_quota", std::to_string(static_cast<double>(watch.most()) / kQuota));
  // All of it comes back.
  client->Drop(kOtherPrefix);
  EXPECT_TRUE(testing::WaitUntil([&] {
    client->Flush(absl::Seconds(20));
    return BytesOnDisk(daemon.store()) < kQuota / 10;
  })) << BytesOnDisk(daemon.store());
}

}  // namespace
}  // namespace egeria::cache

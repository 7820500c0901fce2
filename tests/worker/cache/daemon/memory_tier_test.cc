#include "worker/cache/daemon/memory_tier.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "worker/cache/daemon/activation_store.h"

namespace egeria::cache {
namespace {

const JobId kOne("0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11");
const JobId kTwo("1b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d22");
const JobId kThree("2b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d33");
constexpr Fingerprint kA = {1};
constexpr Fingerprint kB = {2};
constexpr size_t kLength = 10'000;
constexpr int64_t kCost = kLength + kOverhead;
constexpr uint64_t kSamples = 40;

// A store whose memory has room for `kSamples` entries.
class MemoryTierTest : public ::testing::Test {
 protected:
  MemoryTierTest() {
    options_.folder = folder_ / "store";
    options_.free_bytes = 0;
    options_.write_buffer_bytes = 1 << 20;
    options_.memory_bytes = kSamples * kCost;
    Open();
    for (const JobId& job : {kOne, kTwo, kThree}) store_->Attach(job, 0);
  }
  void Open() {
    store_.reset();
    store_ = *ActivationStore::Open(options_);
  }
  static std::string Entry(uint64_t sample, size_t length = kLength) {
    std::string entry = std::to_string(sample) + ":";
    entry.resize(length, static_cast<char>('a' + sample % 26));
    return entry;
  }
  void Put(const JobId& job, const Fingerprint& prefix, uint64_t first, uint64_t count, size_t length = kLength) {
    for (uint64_t sample = first; sample < first + count; ++sample) {
      while (store_->Put(job, prefix, sample, Entry(sample, length)) == ActivationStore::Outcome::kBusy) {
      }
    }
  }
  // How many of these samples are in memory. Those have to be what they were.
  int64_t InMemory(const JobId& job, const Fingerprint& prefix, uint64_t count, size_t length = kLength) {
    std::vector<uint64_t> samples(count);
    std::iota(samples.begin(), samples.end(), uint64_t{0});
    std::vector<std::byte> slots(count * length);
    std::vector<int64_t> lengths(count, 77);
    const size_t on_disk = store_->GetFromMemory(job, prefix, samples, slots.data(), length, lengths);
    EXPECT_EQ(on_disk, std::ranges::count(lengths, ActivationStore::kOnDisk));
    for (uint64_t i = 0; i < count; ++i) {
      if (lengths[i] <= 0) continue;
      EXPECT_EQ(std::memcmp(slots.data() + i * length, Entry(i, length).data(), length), 0) << i;
    }
    return std::ranges::count_if(lengths, [](int64_t found) { return found > 0; });
  }
  bool Read(const JobId& job, const Fingerprint& prefix, uint64_t sample) {
    std::vector<std::byte> memory(kLength);
    return store_->Get(job, prefix, sample, memory) == kLength &&
           std::memcmp(memory.data(), Entry(sample).data(), kLength) == 0;
  }
  int64_t memory_bytes() const { return store_->totals().memory_bytes; }

  testing::TempFolder folder_;
  ActivationStore::Options options_;
  std::unique_ptr<ActivationStore> store_;
};

TEST_F(MemoryTierTest, EntriesAreInMemoryFromTheWriteOnAndAfterARestartOnceTheyWereRead) {
  Put(kOne, kA, 0, 20);
  EXPECT_EQ(InMemory(kOne, kA, 20), 20);
  EXPECT_EQ(memory_bytes(), 20 * kCost);
  Open();
  store_->Attach(kOne, 0);
  EXPECT_EQ(InMemory(kOne, kA, 20), 0);
  for (int time = 0; time < 2; ++time) {
    for (uint64_t sample = 0; sample < 20; ++sample) EXPECT_TRUE(Read(kOne, kA, sample));
    EXPECT_EQ(InMemory(kOne, kA, 20), 20);
    EXPECT_EQ(memory_bytes(), 20 * kCost) << "nothing is kept twice";
  }
}

TEST_F(MemoryTierTest, WhatIsBeyondTheMemoryComesFromTheDisk) {
  Put(kOne, kA, 0, 2 * kSamples);
  EXPECT_EQ(InMemory(kOne, kA, 2 * kSamples), kSamples);
  for (uint64_t sample = 0; sample < 2 * kSamples; ++sample) EXPECT_TRUE(Read(kOne, kA, sample));
  EXPECT_EQ(memory_bytes(), kSamples * kCost);
  EXPECT_EQ(InMemory(kOne, kA, kSamples), kSamples) << "what was there first stays";
}

TEST_F(MemoryTierTest, LongEntriesAreOnTheDiskAlone) {
  Put(kOne, kA, 0, 2, MemoryTier::kMaxEntry + 1);
  EXPECT_EQ(InMemory(kOne, kA, 2, MemoryTier::kMaxEntry + 1), 0);
  Put(kOne, kB, 0, 2, MemoryTier::kMaxEntry);
  EXPECT_EQ(InMemory(kOne, kB, 2, MemoryTier::kMaxEntry), 2);
}

TEST_F(MemoryTierTest, EachJobGetsAnEqualPartAndMoreWhileOthersLeaveIt) {
  Put(kOne, kA, 0, 2 * kSamples);
  Put(kTwo, kA, 0, 2 * kSamples);
  EXPECT_NEAR(InMemory(kOne, kA, 2 * kSamples), kSamples / 2, 1);
  EXPECT_NEAR(InMemory(kTwo, kA, 2 * kSamples), kSamples / 2, 1);
  Put(kThree, kB, 0, 4);
  EXPECT_EQ(InMemory(kThree, kB, 4), 4);
  EXPECT_NEAR(InMemory(kOne, kA, 2 * kSamples), kSamples / 2 - 2, 1);
  Put(kThree, kB, 4, 2 * kSamples);
  for (const JobId& job : {kOne, kTwo, kThree}) {
    EXPECT_NEAR(InMemory(job, job == kThree ? kB : kA, 2 * kSamples), kSamples / 3, 1);
  }
  EXPECT_LE(memory_bytes(), options_.memory_bytes);
  for (uint64_t sample = 0; sample < 2 * kSamples; ++sample) EXPECT_TRUE(Read(kOne, kA, sample));
}

TEST_F(MemoryTierTest, MemoryIsGivenBackWithThePrefixTheJobAndWhatIsWrong) {
  Put(kOne, kA, 0, 10);
  Put(kOne, kB, 0, 10);
  Put(kTwo, kA, 0, 10);
  store_->DropPrefix(kOne, kA);
  EXPECT_EQ(memory_bytes(), 20 * kCost);
  EXPECT_EQ(InMemory(kOne, kA, 10), 0);
  store_->Discard(kOne, kB, 3);
  EXPECT_EQ(InMemory(kOne, kB, 10), 9);
  EXPECT_FALSE(Read(kOne, kB, 3));
  Put(kOne, kB, 3, 1);
  EXPECT_EQ(InMemory(kOne, kB, 10), 10);
  store_->Attach(kTwo, 0);
  store_->Detach(kTwo);
  EXPECT_EQ(InMemory(kTwo, kA, 10), 10) << "another process of the job is attached";
  store_->Detach(kTwo);
  EXPECT_EQ(memory_bytes(), 10 * kCost);
  for (uint64_t sample = 0; sample < 10; ++sample) EXPECT_TRUE(Read(kTwo, kA, sample)) << "it is still on the disk";
  EXPECT_EQ(memory_bytes(), 10 * kCost) << "nobody is attached who would need it there";
  // All of the memory can be filled again.
  Put(kOne, kB, 10, 2 * kSamples);
  EXPECT_EQ(InMemory(kOne, kB, 3 * kSamples), kSamples);
}

}  // namespace
}  // namespace egeria::cache

#include "worker/cache/client/batch_reader.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "ATen/ops/equal.h"
#include "ATen/ops/full.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cache_daemon.h"

namespace egeria::cache {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr Fingerprint kPrefix = {1};
constexpr Fingerprint kOtherPrefix = {2};
constexpr absl::Duration kPatience = absl::Seconds(20);

std::vector<uint64_t> Samples(uint64_t first, uint64_t count) {
  std::vector<uint64_t> samples(count);
  std::iota(samples.begin(), samples.end(), first);
  return samples;
}

class BatchReaderTest : public ::testing::Test {
 protected:
  BatchReaderTest() : client_(daemon_.Connect()), reader_(client_, {}) { reader_.Use(kPrefix); }

  // A sample's tensor is full of its number; its input hash is a thousand times that.
  static at::Tensor Row(uint64_t sample, std::vector<int64_t> shape = {3, 4}) {
    return at::full(shape, static_cast<double>(sample), at::kFloat);
  }
  static std::vector<uint64_t> Hashes(const std::vector<uint64_t>& samples) {
    std::vector<uint64_t> hashes;
    for (const uint64_t sample : samples) hashes.push_back(1000 * sample);
    return hashes;
  }
  void Store(const std::vector<uint64_t>& samples, const Fingerprint& prefix = kPrefix,
             std::vector<int64_t> shape = {3, 4}) {
    for (const uint64_t sample : samples) {
      const at::Tensor row = Row(sample, shape);
      const EntryTensor tensor{DataType::kFloat32, shape, static_cast<const std::byte*>(row.const_data_ptr())};
      const CacheClient::Offered entry{sample, 1000 * sample, {tensor}};
      ASSERT_EQ(client_->Offer(prefix, std::span(&entry, 1)), 1);
    }
    ASSERT_TRUE(client_->Flush(absl::Seconds(20)));
  }
  CachedBatch Take(const std::vector<uint64_t>& samples) { return reader_.Take(samples, Hashes(samples), kPatience); }
  void WaitUntilAhead(int64_t lookups) {
    ASSERT_TRUE(testing::WaitUntil([&] { return client_->counters().found >= lookups; }));
  }

  testing::CacheDaemon daemon_;
  std::shared_ptr<CacheClient> client_;
  BatchReader reader_;
};

TEST_F(BatchReaderTest, ABatchIsPutTogetherFromItsSamples) {
  Store(Samples(0, 10));
  const CachedBatch batch = Take({7, 3, 3, 9});
  ASSERT_EQ(batch.tensors.size(), 1);
  EXPECT_THAT(batch.tensors[0].sizes(), ElementsAre(4, 3, 4));
  EXPECT_THAT(batch.outcomes, Each(SampleOutcome::kHit));
  for (const auto& [row, sample] : {std::pair{0, 7}, {1, 3}, {2, 3}, {3, 9}}) {
    EXPECT_TRUE(at::equal(batch.tensors[0][row], Row(sample)));
  }
  EXPECT_EQ(reader_.counters().hits, 4);
  EXPECT_EQ(reader_.counters().batches_waited_for, 1);
}

TEST_F(BatchReaderTest, MissesAreToldByTheirReason) {
  Store(Samples(0, 4));
  Store({20}, kPrefix, {2, 4});
  const CachedBatch batch =
      reader_.Take(std::vector<uint64_t>{0, 1, 15, 20}, std::vector<uint64_t>{0, 5, 15000, 20000}, kPatience);
  EXPECT_THAT(batch.outcomes, ElementsAre(SampleOutcome::kHit, SampleOutcome::kOtherInput, SampleOutcome::kAbsent,
                                          SampleOutcome::kShapeMismatch));
  EXPECT_TRUE(at::equal(batch.tensors[0][0], Row(0)));
  const CachedBatch none = reader_.Take(std::vector<uint64_t>{1, 2}, std::vector<uint64_t>{5, 5}, kPatience);
  EXPECT_TRUE(none.tensors.empty()) << "nobody needs what belongs to other inputs";
}

TEST_F(BatchReaderTest, ExpectedBatchesAreThereWhenTheyAreAskedFor) {
  Store(Samples(0, 60));
  std::vector<std::vector<uint64_t>> batches;
  for (uint64_t batch = 0; batch < 6; ++batch) batches.push_back(Samples(10 * batch, 10));
  reader_.Expect(batches);
  WaitUntilAhead(60);
  daemon_.Signal(SIGSTOP);  // nothing can be read any more
  const int64_t waited_for = reader_.counters().batches_waited_for;
  for (size_t batch = 0; batch < 5; ++batch) {
    const CachedBatch taken = Take(batches[batch]);
    EXPECT_THAT(taken.outcomes, Each(SampleOutcome::kHit));
    EXPECT_TRUE(at::equal(taken.tensors[0][3], Row(10 * batch + 3)));
  }
  EXPECT_EQ(reader_.counters().batches_ahead, 5);
  EXPECT_EQ(reader_.counters().batches_waited_for, waited_for);
  daemon_.Signal(SIGCONT);
}

TEST_F(BatchReaderTest, RestsAndGoesOn) {
  Store(Samples(0, 20));
  reader_.Expect({Samples(0, 10), Samples(10, 10)});
  WaitUntilAhead(20);
  const CachedBatch kept = Take(Samples(0, 10));
  reader_.Rest();
  EXPECT_TRUE(at::equal(kept.tensors[0][3], Row(3))) << "what was handed out stays";
  EXPECT_EQ(reader_.counters().batches_waited_for, 0);
  EXPECT_THAT(Take(Samples(10, 10)).outcomes, Each(SampleOutcome::kHit));
  EXPECT_EQ(reader_.counters().batches_waited_for, 1) << "what was read ahead is gone";
}

TEST_F(BatchReaderTest, WhatIsNotThereInTimeIsLate) {
  Store(Samples(0, 10));
  daemon_.Signal(SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<uint64_t> samples = Samples(0, 10);
  const CachedBatch batch = reader_.Take(samples, Hashes(samples), absl::Milliseconds(5));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  EXPECT_THAT(batch.outcomes, Each(SampleOutcome::kLate));
  EXPECT_TRUE(batch.tensors.empty());
  EXPECT_EQ(reader_.counters().batches_late, 1);
  daemon_.Signal(SIGCONT);
  EXPECT_TRUE(testing::WaitUntil([&] { return !Take(samples).tensors.empty(); }));
}

TEST_F(BatchReaderTest, AnotherPrefixForgetsWhatWasReadAhead) {
  Store(Samples(0, 10));
  Store(Samples(0, 10), kOtherPrefix, {2});
  reader_.Expect({Samples(0, 10)});
  WaitUntilAhead(10);
  reader_.Use(kOtherPrefix);
  const CachedBatch batch = Take(Samples(0, 10));
  EXPECT_THAT(batch.tensors[0].sizes(), ElementsAre(10, 2));
}

TEST_F(BatchReaderTest, MemoryIsUsedAgainOnlyOnceNobodyHasIt) {
  Store(Samples(0, 20));
  CachedBatch first = Take(Samples(0, 10));
  const void* const memory = first.tensors[0].const_data_ptr();
  const at::Tensor view = first.tensors[0][2];
  first.tensors.clear();
  const CachedBatch second = Take(Samples(10, 10));
  EXPECT_NE(second.tensors[0].const_data_ptr(), memory);
  EXPECT_TRUE(at::equal(view, Row(2)));
}

// Somebody who keeps tensor objects, as Python does, keeps none that the reader has.
TEST_F(BatchReaderTest, TensorsThatAreHandedOutAreNotTheReadersOwn) {
  Store(Samples(0, 10));
  CachedBatch first = Take(Samples(0, 10));
  EXPECT_EQ(first.tensors[0].use_count(), 1u);
  const void* const memory = first.tensors[0].const_data_ptr();
  first.tensors.clear();
  EXPECT_EQ(Take(Samples(0, 10)).tensors[0].const_data_ptr(), memory);
}

TEST_F(BatchReaderTest, AnEmptyBatchIsNothingToReadAhead) {
  Store(Samples(0, 10));
  reader_.Expect({{}, Samples(0, 10)});
  WaitUntilAhead(10);
  EXPECT_THAT(Take(Samples(0, 10)).outcomes, Each(SampleOutcome::kHit));
}

TEST_F(BatchReaderTest, WhatIsReadAheadIsBounded) {
  Store(Samples(0, 60));
  BatchReader::Options options;
  options.ahead_bytes = 2 * 10 * 3 * 4 * sizeof(float);  // two batches
  BatchReader reader(client_, options);
  reader.Use(kPrefix);
  std::vector<std::vector<uint64_t>> batches;
  for (uint64_t batch = 0; batch < 6; ++batch) batches.push_back(Samples(10 * batch, 10));
  reader.Expect(batches);
  WaitUntilAhead(20);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for more than there should be
  EXPECT_LE(client_->counters().found, 21) << "two batches, and one to learn the size of an entry";
  for (const std::vector<uint64_t>& samples : batches) {  // there is room for the next one each time
    EXPECT_THAT(reader.Take(samples, Hashes(samples), kPatience).outcomes, Each(SampleOutcome::kHit));
  }
}

TEST_F(BatchReaderTest, AForkedChildDoesNothing) {
  Store(Samples(0, 10));
  const pid_t child = fork();
  if (child == 0) _exit(Take(Samples(0, 10)).tensors.empty() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(Take(Samples(0, 10)).tensors.empty());
}

TEST_F(BatchReaderTest, AfterItsEndEverythingIsLate) {
  Store(Samples(0, 10));
  reader_.Expect({Samples(0, 10)});
  reader_.Stop();
  EXPECT_THAT(Take(Samples(0, 10)).outcomes, Each(SampleOutcome::kLate));
}

}  // namespace
}  // namespace egeria::cache

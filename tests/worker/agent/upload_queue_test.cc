#include "worker/agent/upload_queue.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::worker {
namespace {

using ::testing::ElementsAre;

std::vector<WireTensor> TensorOf(size_t bytes) {
  const std::vector<char> content(bytes);
  return {MakeWireTensor({"x", DataType::kUInt8, {static_cast<int64_t>(bytes)}}, content.data())};
}

Upload SampleOf(int64_t step, size_t bytes = 10) {
  return Sample{ModuleIndex(0), ModuleIndex(0), step, 1, TensorOf(bytes)};
}
Upload ReadingOf(int64_t step) { return Reading{ModuleIndex(0), step, 1, 0.5}; }
Upload SnapshotOf(int64_t version, int module = 0, size_t bytes = 10) {
  return Snapshot{ModuleIndex(module), 1, version, TensorOf(bytes)};
}

// "s3" is the sample of step 3, "v2m1" the snapshot of module 1 in version 2.
std::vector<std::string> Drain(UploadQueue& queue) {
  std::vector<std::string> names;
  while (std::optional<Upload> upload = queue.Take()) {
    if (const auto* sample = std::get_if<Sample>(&*upload)) {
      names.push_back("s" + std::to_string(sample->step));
    } else if (const auto* reading = std::get_if<Reading>(&*upload)) {
      names.push_back("r" + std::to_string(reading->step));
    } else {
      const auto& snapshot = std::get<Snapshot>(*upload);
      names.push_back("v" + std::to_string(snapshot.version) + "m" + std::to_string(snapshot.module.value()));
    }
    queue.Done();
  }
  return names;
}

TEST(UploadQueue, GivesUploadsInTheOrderOfTheirComing) {
  UploadQueue queue(1000, 8);
  queue.Add(SampleOf(1));
  queue.Add(SnapshotOf(1));
  queue.Add(SampleOf(2));
  EXPECT_EQ(queue.bytes(), 30u);
  EXPECT_THAT(Drain(queue), ElementsAre("s1", "v1m0", "s2"));
  EXPECT_EQ(queue.bytes(), 0u);
}

TEST(UploadQueue, DropsAndCountsTheOldestSampleBeyondTheNumber) {
  UploadQueue queue(1000, 3);
  for (int64_t step = 1; step <= 5; ++step) EXPECT_TRUE(queue.Add(SampleOf(step)));
  EXPECT_EQ(queue.samples_dropped(), 2);
  EXPECT_THAT(Drain(queue), ElementsAre("s3", "s4", "s5"));
}

TEST(UploadQueue, GradientsTakeTheNumberOfASample) {
  UploadQueue queue(1000, 1);
  EXPECT_TRUE(queue.Add(SampleOf(1)));
  EXPECT_TRUE(queue.Add(GradientReading{ModuleIndex(0), 2, 1}));
  EXPECT_EQ(queue.samples_dropped(), 1);
  EXPECT_EQ(queue.size(), 1u);
}

TEST(UploadQueue, DropsAsManyOldSamplesAsTheBytesOfANewOneNeed) {
  UploadQueue queue(100, 8);
  for (int64_t step = 1; step <= 4; ++step) queue.Add(SampleOf(step, 25));
  EXPECT_TRUE(queue.Add(SampleOf(5, 50)));
  EXPECT_EQ(queue.samples_dropped(), 2);
  EXPECT_THAT(Drain(queue), ElementsAre("s3", "s4", "s5"));
}

TEST(UploadQueue, CountsReadingsAsSamplesAndKeepsTheirOrderWithSnapshots) {
  UploadQueue queue(1000, 3);
  for (int64_t step = 1; step <= 4; ++step) EXPECT_TRUE(queue.Add(ReadingOf(step)));
  EXPECT_TRUE(queue.Add(SnapshotOf(1, 0, /*bytes=*/0)));
  EXPECT_TRUE(queue.Add(ReadingOf(5)));
  EXPECT_EQ(queue.samples_dropped(), 2);
  std::optional<Upload> out = queue.Take();
  queue.Return(*std::move(out));  // the stream broke under it
  EXPECT_THAT(Drain(queue), ElementsAre("r3", "r4", "v1m0", "r5"));
  EXPECT_EQ(queue.samples_dropped(), 2);
}

TEST(UploadQueue, RefusesASampleThatNeverFitsAndKeepsTheOthers) {
  UploadQueue queue(100, 8);
  queue.Add(SampleOf(1));
  EXPECT_FALSE(queue.Add(SampleOf(2, 101)));
  EXPECT_FALSE(queue.Add(SampleOf(3, size_t{1} << 24)));
  EXPECT_EQ(queue.samples_dropped(), 2);
  EXPECT_THAT(Drain(queue), ElementsAre("s1"));
}

TEST(UploadQueue, MakesRoomForASnapshotButNeverForASampleAtASnapshotsCost) {
  UploadQueue queue(100, 8);
  queue.Add(SampleOf(1, 60));
  EXPECT_TRUE(queue.Add(SnapshotOf(1, 0, 90)));
  EXPECT_EQ(queue.samples_dropped(), 1);
  EXPECT_FALSE(queue.Add(SampleOf(2, 20)));
  EXPECT_EQ(queue.samples_dropped(), 2);
  EXPECT_FALSE(queue.Add(SnapshotOf(1, 1, 20)));
  EXPECT_THAT(Drain(queue), ElementsAre("v1m0"));
}

TEST(UploadQueue, ReplacesOlderSnapshotsByANewerVersion) {
  UploadQueue queue(1000, 8);
  EXPECT_TRUE(queue.Add(SnapshotOf(1, 0)));
  EXPECT_TRUE(queue.Add(SnapshotOf(1, 1)));
  EXPECT_FALSE(queue.Add(SnapshotOf(1, 1)));
  EXPECT_TRUE(queue.Add(SnapshotOf(2, 0)));
  EXPECT_FALSE(queue.Add(SnapshotOf(1, 3)));
  EXPECT_EQ(queue.bytes(), 10u);
  EXPECT_THAT(Drain(queue), ElementsAre("v2m0"));
}

TEST(UploadQueue, ThrowsAwaySnapshotsThatAreNotWantedAnyMore) {
  UploadQueue queue(1000, 8);
  queue.Add(SnapshotOf(7, 0));
  queue.WantSnapshots(7);
  EXPECT_TRUE(queue.HoldsSnapshot(7, ModuleIndex(0)));
  queue.WantSnapshots(2);  // a restarted controller counts from the beginning
  EXPECT_EQ(queue.size(), 0u);
  EXPECT_TRUE(queue.Add(SnapshotOf(2, 0)));
  queue.WantSnapshots(std::nullopt);
  EXPECT_EQ(queue.bytes(), 0u);
}

TEST(UploadQueue, CountsTheBytesOfTheUploadThatIsOut) {
  UploadQueue queue(100, 8);
  queue.Add(SampleOf(1, 80));
  const std::optional<Upload> out = queue.Take();
  EXPECT_EQ(queue.bytes(), 80u);
  EXPECT_FALSE(queue.Add(SampleOf(2, 30)));
  queue.Done();
  EXPECT_TRUE(queue.Add(SampleOf(2, 30)));
}

TEST(UploadQueue, TakesAnUnsentUploadBackToTheFront) {
  UploadQueue queue(1000, 8);
  for (int64_t step = 1; step <= 2; ++step) queue.Add(SampleOf(step));
  std::optional<Upload> out = queue.Take();
  queue.Return(*std::move(out));
  EXPECT_EQ(queue.bytes(), 20u);
  EXPECT_THAT(Drain(queue), ElementsAre("s1", "s2"));
}

TEST(UploadQueue, TakesNoUnsentUploadBackThatNewerOnesHaveReplaced) {
  UploadQueue queue(1000, 2);
  queue.Add(SampleOf(1));
  std::optional<Upload> out = queue.Take();
  queue.Add(SampleOf(2));
  queue.Add(SampleOf(3));
  queue.Return(*std::move(out));
  EXPECT_EQ(queue.samples_dropped(), 1);
  EXPECT_THAT(Drain(queue), ElementsAre("s2", "s3"));

  queue.Add(SnapshotOf(1));
  out = queue.Take();
  EXPECT_TRUE(queue.HoldsSnapshot(1, ModuleIndex(0)));
  queue.Add(SnapshotOf(2));
  queue.Return(*std::move(out));
  EXPECT_THAT(Drain(queue), ElementsAre("v2m0"));
}

TEST(UploadQueue, CountsWhatItClears) {
  UploadQueue queue(1000, 8);
  for (int64_t step = 1; step <= 3; ++step) queue.Add(SampleOf(step));
  std::optional<Upload> out = queue.Take();
  queue.Clear();
  queue.Return(*std::move(out));
  EXPECT_EQ(queue.samples_dropped(), 3);
  EXPECT_EQ(queue.bytes(), 0u);
  EXPECT_FALSE(queue.Take().has_value());
}

}  // namespace
}  // namespace egeria::worker

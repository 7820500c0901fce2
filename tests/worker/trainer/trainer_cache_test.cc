// egeria-train's training with a real egeria-cache: nothing but time may depend on it.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cache_daemon.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"
#include "worker/trainer/cache_link.h"
#include "worker/trainer/data/random.h"
#include "worker/trainer/data/upcoming_batches.h"
#include "worker/trainer/trainer.h"

namespace egeria::trainer {
namespace {

using ::egeria::testing::CacheDaemon;
using ::egeria::testing::GlooGroup;
using ::egeria::testing::RunRanks;
using ::egeria::testing::WaitUntil;
using ::testing::HasSubstr;

constexpr int kRanks = 2;
constexpr int kImages = 60;  // in each of CIFAR-10's files
constexpr int kBatch = 8;
constexpr int kStepsPerEpoch = 5 * kImages / (kRanks * kBatch);  // the rest of an epoch is dropped

// Once its write buffer was full.
bool HasEntriesOnDisk(const CacheDaemon& daemon) {
  const std::filesystem::directory_iterator files(daemon.store());
  return std::any_of(begin(files), end(files), [](const auto& file) { return file.path().extension() == ".blob"; });
}

// ResNet-20 on random images in CIFAR-10's format.
class TrainerCacheTest : public ::testing::Test {
 protected:
  TrainerCacheTest() {
    Random random({7});
    for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                             "data_batch_5.bin", "test_batch.bin"}) {
      std::string records;
      for (int i = 0; i < kImages; ++i) {
        const auto label = static_cast<char>(random.Below(10));
        records.push_back(label);
        for (int p = 0; p < 3 * 32 * 32; ++p) {
          records.push_back(static_cast<char>(random.Below(100) + (p / 100 % 10 == label ? 100 : 0)));
        }
      }
      std::ofstream(folder_ / name, std::ios::binary) << records;
    }
    options_.task = "resnet20";
    options_.data = folder_.path();
    options_.train_samples = 5 * kImages;
    options_.validation_samples = 50;
    options_.epochs = 4;
    options_.batch_size = kBatch;
    options_.threads = 1;
    options_.augment = "none";
    EXPECT_TRUE(ResolveOptions(&options_).ok());
    // Freeze, freeze more, unfreeze all, and freeze what was frozen before, with other weights now.
    std::ofstream(folder_ / "plans.json")
        << "[{\"step\": 6, \"frozen_prefix\": 2}, {\"step\": 42, \"frozen_prefix\": 3},"
           " {\"step\": 48, \"frozen_prefix\": 0}, {\"step\": 52, \"frozen_prefix\": 2}]";
    options_.plans = folder_ / "plans.json";
  }

  RunSummary TrainOn(const Options& options, int ranks = kRanks) const {
    std::vector<absl::StatusOr<RunSummary>> answers(ranks, absl::UnknownError("did not run"));
    RunRanks(ranks, [&](const worker::GroupMember& member) {
      Launch launch;
      launch.member = member;
      launch.training_group = GlooGroup(member, "training");
      launch.commit_group = GlooGroup(member, "commit");
      answers[member.rank] = Train(options, launch, c10::kCPU);
    });
    for (const auto& answer : answers) EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(answers[0]->ranks_identical);
    return *answers[0];
  }
  Options Cached(bool always = true) const {
    Options cached = options_;
    cached.cache = daemon_.address();
    cached.cache_use = always ? "always" : "auto";
    cached.cache_patience = 20;
    return cached;
  }
  // The run without a cache, which all are compared with.
  const RunSummary& Plain() const {
    static const RunSummary plain = TrainOn(options_);
    return plain;
  }
  static int64_t Misses(const RunSummary& run, const std::string& reason) {
    return run.cache.misses.contains(reason) ? run.cache.misses.at(reason) : 0;
  }

  testing::TempFolder folder_;
  CacheDaemon daemon_;
  Options options_;
};

TEST_F(TrainerCacheTest, GivesTheSameWeightsThroughFreezingUnfreezingAndFreezingAgain) {
  const RunSummary plain = Plain(), cached = TrainOn(Cached());
  EXPECT_EQ(plain.parameters_hash, cached.parameters_hash);
  EXPECT_EQ(plain.validation_loss, cached.validation_loss);
  EXPECT_EQ(plain.cache.state, "none");
  EXPECT_EQ(cached.decisions.size(), 4u);
  // From the second epoch on samples come again whose activations are stored.
  EXPECT_GT(cached.cache.hits, 5 * kBatch);
  EXPECT_GT(cached.cache.passes_skipped, 5);
  EXPECT_EQ(cached.cache.passes, kStepsPerEpoch * 4 - 6 - 4);
  EXPECT_EQ(Misses(cached, "corrupt") + Misses(cached, "other_input") + Misses(cached, "unfit"), 0);
}

TEST_F(TrainerCacheTest, FusedLayersDifferByRoundingsAndTheCacheKeepsWhatTheyGive) {
  Options fused = options_, cached = Cached();
  fused.frozen_forward = cached.frozen_forward = "fused";
  const RunSummary plain = Plain(), both = TrainOn(cached);
  // Training amplifies roundings, differently on each processor: this says that all three learn the task (0.005 here),
  // where a model that has learned nothing has a loss of 2.3. FusedPrefixTest bounds the outputs themselves.
  EXPECT_NEAR(TrainOn(fused).validation_loss, plain.validation_loss, 0.05);
  EXPECT_NEAR(both.validation_loss, plain.validation_loss, 0.05);
  EXPECT_GT(both.cache.hits, 5 * kBatch) << "misses: " << ::testing::PrintToString(both.cache.misses);
  EXPECT_EQ(Misses(both, "corrupt") + Misses(both, "other_input") + Misses(both, "unfit"), 0);
}

TEST_F(TrainerCacheTest, GivesTheSameWeightsFromCompressedEntries) {
  Options compressed = Cached();
  compressed.cache_compression = "zstd";
  const RunSummary cached = TrainOn(compressed);
  EXPECT_EQ(Plain().parameters_hash, cached.parameters_hash);
  EXPECT_GT(cached.cache.hits, 5 * kBatch);
  EXPECT_EQ(Misses(cached, "corrupt") + Misses(cached, "other_input") + Misses(cached, "unfit"), 0);
  compressed.cache_compression = "zip";
  std::string job;
  EXPECT_THAT(LinkCache(compressed, Launch{}, c10::kCPU, kStepsPerEpoch, &job).status().message(),
              HasSubstr("[BAD_CONFIG]"));
}

TEST_F(TrainerCacheTest, AJobsOwnQuotaLimitsWhatIsKeptOfIt) {
  Options small = Cached();
  small.cache_job_quota = 300'000;
  const RunSummary limited = TrainOn(small), cached = TrainOn(Cached());
  EXPECT_EQ(Plain().parameters_hash, limited.parameters_hash);
  EXPECT_LT(limited.cache.hits, cached.cache.hits / 2);
}

TEST_F(TrainerCacheTest, TheCostModelMayDecideAsItLikes) {
  const RunSummary plain = Plain(), cached = TrainOn(Cached(/*always=*/false));
  EXPECT_EQ(plain.parameters_hash, cached.parameters_hash);
  EXPECT_NE(cached.cache.reason, "");
}

TEST_F(TrainerCacheTest, RandomAugmentationNeverHits) {
  options_.augment = "random";
  const RunSummary plain = TrainOn(options_), cached = TrainOn(Cached()), weighed = TrainOn(Cached(/*always=*/false));
  EXPECT_EQ(plain.parameters_hash, cached.parameters_hash);
  EXPECT_EQ(plain.parameters_hash, weighed.parameters_hash);
  EXPECT_EQ(cached.cache.hits, 0);
  EXPECT_GT(Misses(cached, "other_input"), 0);
  EXPECT_THAT(weighed.cache.reason, HasSubstr("random augmentation"));
  EXPECT_EQ(weighed.cache.proofs, 0);
}

TEST_F(TrainerCacheTest, ADaemonThatIsKilledInTheMiddleChangesNothing) {
  options_.epochs = 6;
  const RunSummary plain = TrainOn(options_);
  CacheDaemon daemon({"--write-buffer", "1MiB"});
  Options options = Cached();
  options.cache = daemon.address();
  std::thread killer([&] {
    EXPECT_TRUE(WaitUntil([&] { return HasEntriesOnDisk(daemon); }, std::chrono::seconds(60)));
    daemon.Signal(SIGKILL);
  });
  const RunSummary cached = TrainOn(options);
  killer.join();
  EXPECT_EQ(plain.parameters_hash, cached.parameters_hash);
  EXPECT_GT(Misses(cached, "late"), 0);
}

TEST_F(TrainerCacheTest, AResumeGoesOnWithTheEntriesOfTheInterruptedRun) {
  const RunSummary plain = Plain();
  Options cached = Cached();
  cached.checkpoint = folder_ / "checkpoint";
  cached.stop_after = 15;  // in the middle of the first epoch
  TrainOn(cached);
  std::filesystem::copy_file(folder_ / "checkpoint", folder_ / "copy");
  cached.stop_after = 0;
  cached.resume = true;
  cached.job_id = JobId::Random().text();  // as a new launch gives it
  const RunSummary resumed = TrainOn(cached);
  EXPECT_EQ(plain.parameters_hash, resumed.parameters_hash);
  EXPECT_EQ(Misses(resumed, "other_input") + Misses(resumed, "corrupt"), 0);
  const CacheDaemon empty;
  cached.cache = empty.address();
  cached.checkpoint = folder_ / "copy";
  const RunSummary alone = TrainOn(cached);
  EXPECT_EQ(plain.parameters_hash, alone.parameters_hash);
  EXPECT_GT(resumed.cache.hits, alone.cache.hits);
}

TEST(UpcomingBatches, AreTheSamplersOwnAlsoOverTheEndOfAnEpoch) {
  Sampler sampler = *Sampler::Make(50, 2, 4, /*seed=*/3);  // 6 steps an epoch
  UpcomingBatches upcoming(sampler, /*rank=*/1, /*count=*/4);
  for (const int64_t step : {0, 1, 2, 3, 4, 5, 6, 7, 7, 3, 20}) {
    const std::vector<std::vector<uint64_t>>& batches = upcoming.From(step);
    ASSERT_EQ(batches.size(), 4u);
    for (int64_t i = 0; i < 4; ++i) {
      const std::vector<int64_t> wanted = sampler.Batch(step + i, 1);
      EXPECT_EQ(batches[i], std::vector<uint64_t>(wanted.begin(), wanted.end())) << step << " + " << i;
    }
  }
}

}  // namespace
}  // namespace egeria::trainer

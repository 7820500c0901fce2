#include "controller/reference/evaluator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "tests/support/reference_graphs.h"

namespace egeria::reference {
namespace {

using ::testing::HasSubstr;
using testing::BasicBlock;
using testing::RandomTensor;
using testing::SampleModule;

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr int64_t kBatch = 4;

// A load that a test sets, and results that it waits for.
class EvaluatorTest : public ::testing::Test {
 protected:
  void Start(EvaluatorOptions options = {}) {
    options.cpu_load = [this] {
      const absl::MutexLock lock(&mutex_);
      ++load_reads_;
      return load_;
    };
    options.load_poll = absl::Milliseconds(1);
    auto evaluator = Evaluator::Start(std::move(options), [this](const Evaluator::Result& result) {
      const absl::MutexLock lock(&mutex_);
      results_.push_back(result);
    });
    ASSERT_TRUE(evaluator.ok()) << evaluator.status();
    evaluator_ = *std::move(evaluator);
  }

  void SetLoad(double load) {
    const absl::MutexLock lock(&mutex_);
    load_ = load;
  }
  // Until the gate was asked `count` more times.
  void WaitForLoadReads(int count) {
    const absl::MutexLock lock(&mutex_);
    const int target = load_reads_ + count;
    const auto reached = [this, target]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return load_reads_ >= target; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&reached), kPatience));
  }
  std::vector<Evaluator::Result> WaitForResults(size_t count) {
    const absl::MutexLock lock(&mutex_);
    const auto reached = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return results_.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&reached), kPatience));
    return results_;
  }
  size_t result_count() {
    const absl::MutexLock lock(&mutex_);
    return results_.size();
  }

  // One module with weights.
  JobId AddJob(const JobTraits& traits = {}) {
    const JobId job = JobId::Random();
    const std::vector<absl::Status> statuses = evaluator_->SetJob(job, {module_.graph}, traits);
    EXPECT_TRUE(statuses.size() == 1 && statuses[0].ok()) << statuses[0];
    const absl::Status snapshot = evaluator_->SubmitSnapshot(job, ModuleIndex(0), 1, 0, module_.weights);
    EXPECT_TRUE(snapshot.ok()) << snapshot;
    return job;
  }

  static std::vector<WireTensor> Sample(uint64_t seed = 7) {
    std::mt19937_64 random(seed);
    return {RandomTensor("x", {kBatch, 8, 6, 6}, random), RandomTensor("gram", {kBatch, kBatch}, random)};
  }
  absl::Status Submit(const JobId& job, int64_t step, std::vector<WireTensor> tensors) {
    return evaluator_->SubmitSample(job, ModuleIndex(0), ModuleIndex(0), step, 3, 100 + step, std::move(tensors));
  }
  absl::Status Submit(const JobId& job, int64_t step) { return Submit(job, step, Sample()); }

  const SampleModule module_ = BasicBlock(8, 6);
  absl::Mutex mutex_;
  double load_ ABSL_GUARDED_BY(mutex_) = 0;
  int load_reads_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Evaluator::Result> results_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Evaluator> evaluator_;
};

void ExpectNamed(const absl::Status& status, absl::StatusCode code, const std::string& name) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("[" + name + "]"));
}

TEST_F(EvaluatorTest, GivesAReadingForASample) {
  Start();
  const JobId job = AddJob();
  ASSERT_TRUE(Submit(job, 5).ok());
  const auto results = WaitForResults(1);
  EXPECT_EQ(results[0].job, job);
  EXPECT_EQ(results[0].module, ModuleIndex(0));
  EXPECT_EQ(results[0].step, 5);
  EXPECT_EQ(results[0].request_version, 3);
  EXPECT_EQ(results[0].tag, 105);
  ASSERT_TRUE(results[0].evaluation.ok()) << results[0].evaluation.status();
  EXPECT_GT(results[0].evaluation->plasticity, 0);
  EXPECT_LE(results[0].evaluation->plasticity, 4.0 / kBatch);
  EXPECT_EQ(results[0].evaluation->backend, "aten");
  EXPECT_GT(results[0].evaluation->compute, absl::ZeroDuration());
  EXPECT_EQ(evaluator_->counters().evaluated, 1);
  EXPECT_EQ(evaluator_->counters().snapshots, 1);
  EXPECT_EQ(evaluator_->counters().queued_bytes, 0u);
}

TEST_F(EvaluatorTest, RefusesASampleBeforeTheFirstSnapshot) {
  Start();
  const JobId job = JobId::Random();
  ASSERT_TRUE(evaluator_->SetJob(job, {module_.graph, std::nullopt}, {})[0].ok());
  ExpectNamed(Submit(job, 1), absl::StatusCode::kFailedPrecondition, "NO_REFERENCE");
  ExpectNamed(evaluator_->SubmitSnapshot(job, ModuleIndex(1), 1, 0, {}), absl::StatusCode::kFailedPrecondition,
              "NO_GRAPH");
}

}  // namespace
}  // namespace egeria::reference

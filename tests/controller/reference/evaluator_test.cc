#include "controller/reference/evaluator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "common/reference/backend.h"
#include "common/reference/reference_module.h"
#include "common/reference/tensor_bridge.h"
#include "controller/reference/thread_priority.h"
#include "tests/support/reference_graphs.h"

namespace egeria::reference {
namespace {

using testing::BasicBlock;
using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::SampleModule;

constexpr std::chrono::seconds kPatience(60);
constexpr int64_t kBatch = 4;

// A load that a test sets, and results that it waits for.
class EvaluatorTest : public ::testing::Test {
 protected:
  void Start(EvaluatorOptions options = {}) {
    options.cpu_load = [this] {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++load_reads_;
      changed_.notify_all();
      return load_;
    };
    options.load_poll = absl::Milliseconds(1);
    options.program = EGERIA_REFERENCE_PROGRAM;
    auto evaluator = Evaluator::Start(std::move(options), [this](const Evaluator::Result& result) {
      const std::lock_guard<std::mutex> lock(mutex_);
      results_.push_back(result);
      changed_.notify_all();
    });
    ASSERT_TRUE(evaluator.ok()) << evaluator.status();
    evaluator_ = *std::move(evaluator);
  }

  void SetLoad(double load) {
    const std::lock_guard<std::mutex> lock(mutex_);
    load_ = load;
  }
  // Until the gate was asked `count` more times.
  void WaitForLoadReads(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    const int target = load_reads_ + count;
    ASSERT_TRUE(changed_.wait_for(lock, kPatience, [&] { return load_reads_ >= target; }));
  }
  std::vector<Evaluator::Result> WaitForResults(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return results_.size() >= count; }));
    return results_;
  }
  size_t result_count() {
    const std::lock_guard<std::mutex> lock(mutex_);
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
  // A sample with the Gram matrix that these modules, one after the other, give.
  static std::vector<WireTensor> TrueSample(const std::vector<SampleModule>& modules) {
    std::vector<WireTensor> sample = Sample();
    std::vector<at::Tensor> values = {ToTensor(sample[0])};
    for (const SampleModule& module : modules) {
      const auto reference = *ReferenceModule::Create(module.graph);
      reference->SetWeights(module.weights);
      values = *reference->Run(*MakeAtenBackend(), values);
    }
    const at::Tensor gram = GramMatrix(values[0]);
    sample[1] = MakeWireTensor(sample[1].spec, gram.const_data_ptr<float>());
    return sample;
  }

  absl::Status Submit(const JobId& job, int64_t step, std::vector<WireTensor> tensors) {
    return evaluator_->SubmitSample(job, {.module = ModuleIndex(0),
                                          .step = step,
                                          .request_version = 3,
                                          .tag = 100 + step,
                                          .tensors = std::move(tensors)});
  }
  absl::Status Submit(const JobId& job, int64_t step) { return Submit(job, step, Sample()); }

  const SampleModule module_ = BasicBlock(8, 6);
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  double load_ = 0;
  int load_reads_ = 0;
  std::vector<Evaluator::Result> results_;

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

TEST_F(EvaluatorTest, NamesWhatIsWrongWithAGraph) {
  Start();
  graph::ModuleGraph unknown = module_.graph, cyclic = module_.graph, empty = module_.graph;
  unknown.nodes[2].op = "aten::relu_";
  cyclic.nodes[0].args[0] = testing::Ref(cyclic.nodes[3].outputs[0]);
  empty.outputs.clear();
  const auto statuses = evaluator_->SetJob(JobId::Random(), {unknown, cyclic, empty, std::nullopt, module_.graph}, {});
  ASSERT_EQ(statuses.size(), 5u);
  ExpectNamed(statuses[0], absl::StatusCode::kInvalidArgument, "UNKNOWN_OP");
  ExpectNamed(statuses[1], absl::StatusCode::kInvalidArgument, "UNDEFINED_VALUE");
  ExpectNamed(statuses[2], absl::StatusCode::kInvalidArgument, "NO_OUTPUT");
  ExpectNamed(statuses[3], absl::StatusCode::kFailedPrecondition, "NO_GRAPH");
  EXPECT_TRUE(statuses[4].ok()) << statuses[4];
}

TEST_F(EvaluatorTest, NamesWhatIsWrongWithASnapshot) {
  Start();
  const JobId job = AddJob();
  const auto submit = [&](std::vector<WireTensor> weights, int64_t module = 0) {
    return evaluator_->SubmitSnapshot(job, ModuleIndex(module), 2, 9, std::move(weights));
  };
  std::vector<WireTensor> missing = module_.weights, shape = missing, dtype = missing, nan = missing, cut = missing;
  missing.pop_back();
  shape[1].spec.shape.push_back(1);
  dtype[0].spec.dtype = DataType::kInt32;
  const std::vector<float> values(8, std::nanf(""));
  nan[1] = MakeWireTensor(nan[1].spec, values.data());
  cut[0].bytes = cut[0].bytes.first(cut[0].size() - 1);
  ExpectNamed(submit(missing), absl::StatusCode::kInvalidArgument, "MISSING_WEIGHT");
  ExpectNamed(submit(shape), absl::StatusCode::kInvalidArgument, "BAD_SHAPE");
  ExpectNamed(submit(dtype), absl::StatusCode::kInvalidArgument, "BAD_DTYPE");
  ExpectNamed(submit(nan), absl::StatusCode::kInvalidArgument, "SNAPSHOT_NOT_FINITE");
  ExpectNamed(submit(cut), absl::StatusCode::kInvalidArgument, "BAD_SHAPE");
  ExpectNamed(submit(module_.weights, 1), absl::StatusCode::kNotFound, "UNKNOWN_MODULE");
  ExpectNamed(submit(module_.weights, -1), absl::StatusCode::kNotFound, "UNKNOWN_MODULE");
  ExpectNamed(evaluator_->SubmitSnapshot(JobId::Random(), ModuleIndex(0), 1, 1, module_.weights),
              absl::StatusCode::kNotFound, "UNKNOWN_JOB");
  EXPECT_EQ(evaluator_->counters().snapshots, 1);
}

TEST_F(EvaluatorTest, NamesWhatIsWrongWithASample) {
  Start();
  const JobId job = AddJob();
  std::vector<WireTensor> missing = Sample(), shape = Sample(), dtype = Sample(), nan = Sample(), cut = Sample();
  missing.pop_back();
  shape[0].spec.shape = {kBatch, 8, 36};
  dtype[0].spec.dtype = DataType::kInt32;
  const std::vector<float> values(kBatch * kBatch, std::numeric_limits<float>::infinity());
  nan[1] = MakeWireTensor(nan[1].spec, values.data());
  cut[0].bytes = cut[0].bytes.first(cut[0].size() / 2);
  ExpectNamed(Submit(job, 1, missing), absl::StatusCode::kInvalidArgument, "BAD_SHAPE");
  ExpectNamed(Submit(job, 1, shape), absl::StatusCode::kInvalidArgument, "BAD_SHAPE");
  ExpectNamed(Submit(job, 1, dtype), absl::StatusCode::kInvalidArgument, "BAD_DTYPE");
  ExpectNamed(Submit(job, 1, nan), absl::StatusCode::kInvalidArgument, "SAMPLE_NOT_FINITE");
  ExpectNamed(Submit(job, 1, cut), absl::StatusCode::kInvalidArgument, "BAD_SHAPE");
  ExpectNamed(Submit(JobId::Random(), 1), absl::StatusCode::kNotFound, "UNKNOWN_JOB");
  ExpectNamed(evaluator_->SubmitSample(job, {.first_module = ModuleIndex(1), .step = 1, .tensors = Sample()}),
              absl::StatusCode::kNotFound, "UNKNOWN_MODULE");
}

TEST_F(EvaluatorTest, GoesOnWithOtherJobsAfterABadOne) {
  Start();
  SampleModule bad = module_;  // well-formed, and yet it cannot run
  bad.graph.nodes.push_back({"aten::view", "", {testing::Ref(bad.graph.outputs[0]), testing::Ints({7, 7})}, {}, {"z"}});
  bad.graph.outputs = {"z"};
  SampleModule greedy = module_;
  greedy.graph.nodes.push_back({"aten::zeros", "", {testing::Ints({int64_t{1} << 45})}, {}, {"z"}});
  const JobId bad_job = JobId::Random(), greedy_job = JobId::Random(), good_job = AddJob();
  for (const auto& [job, module] : {std::pair{bad_job, bad}, std::pair{greedy_job, greedy}}) {
    ASSERT_TRUE(evaluator_->SetJob(job, {module.graph}, {})[0].ok());
    ASSERT_TRUE(evaluator_->SubmitSnapshot(job, ModuleIndex(0), 1, 0, module.weights).ok());
    ASSERT_TRUE(Submit(job, 1).ok());
  }
  WaitForResults(2);
  ASSERT_TRUE(Submit(good_job, 2).ok());
  const auto results = WaitForResults(3);
  std::map<JobId, absl::Status> statuses;
  for (const auto& result : results) statuses[result.job] = result.evaluation.status();
  ExpectNamed(statuses[bad_job], absl::StatusCode::kInternal, "REFERENCE_FAILED");
  ExpectNamed(statuses[greedy_job], absl::StatusCode::kResourceExhausted, "GRAPH_TOO_LARGE");
  EXPECT_TRUE(statuses[good_job].ok()) << statuses[good_job];
  EXPECT_EQ(evaluator_->counters().evaluated, 1);
}

TEST_F(EvaluatorTest, RunsOnlyWhileTheLoadIsUnderItsLimit) {
  Start({.max_cpu_load = 0.5});
  SetLoad(0.5);
  const JobId job = AddJob();
  ASSERT_TRUE(Submit(job, 1).ok());
  WaitForLoadReads(3);
  EXPECT_EQ(result_count(), 0u);
  EXPECT_GT(evaluator_->counters().queued_bytes, 0u);
  SetLoad(0.49);
  EXPECT_TRUE(WaitForResults(1)[0].evaluation.ok());
}

TEST_F(EvaluatorTest, DropsAndCountsASampleThatWaitsForTwiceItsDeadline) {
  Start();
  SetLoad(1);
  const JobId job = AddJob({.deadline_steps = 10});
  ASSERT_TRUE(Submit(job, 1).ok());
  evaluator_->ReportStep(job, 20);
  WaitForLoadReads(2);
  EXPECT_EQ(evaluator_->counters().dropped_late, 0);
  evaluator_->ReportStep(job, 21);
  SetLoad(0);
  ASSERT_TRUE(Submit(job, 22).ok());
  const auto results = WaitForResults(1);
  EXPECT_EQ(results[0].step, 22);
  EXPECT_EQ(evaluator_->counters().dropped_late, 1);
}

TEST_F(EvaluatorTest, KeepsOnlyTheNewestSamplesOfAJob) {
  Start({.max_samples_per_job = 2});
  SetLoad(1);
  const JobId job = AddJob(), other = AddJob();
  for (int64_t step = 1; step <= 5; ++step) ASSERT_TRUE(Submit(job, step).ok());
  ASSERT_TRUE(Submit(other, 77).ok());
  EXPECT_EQ(evaluator_->counters().dropped_queue_full, 3);
  SetLoad(0);
  std::vector<int64_t> steps;
  for (const auto& result : WaitForResults(3)) steps.push_back(result.step);
  EXPECT_THAT(steps, ::testing::UnorderedElementsAre(4, 5, 77));
}

TEST_F(EvaluatorTest, BoundsTheBytesThatWait) {
  const size_t sample = (kBatch * 8 * 36 + kBatch * kBatch) * sizeof(float);
  Start({.max_queue_bytes = 3 * sample, .max_samples_per_job = 100});
  SetLoad(1);
  const JobId job = AddJob();
  for (int64_t step = 1; step <= 20; ++step) {
    ASSERT_TRUE(Submit(job, step).ok());
    EXPECT_LE(evaluator_->counters().queued_bytes, 3 * sample);
  }
}

TEST_F(EvaluatorTest, MeasuresZeroAgainstTheSameWeightsAndMoreAgainstOthers) {
  Start();
  const JobId job = AddJob();
  ASSERT_TRUE(Submit(job, 1, TrueSample({module_})).ok());
  const SampleModule other = BasicBlock(8, 6, testing::Spelling::kExported, /*seed=*/99);
  WaitForResults(1);
  ASSERT_TRUE(evaluator_->SubmitSnapshot(job, ModuleIndex(0), 2, 3, other.weights).ok());
  ASSERT_TRUE(Submit(job, 2, TrueSample({module_})).ok());
  const auto results = WaitForResults(2);
  EXPECT_NEAR(results[0].evaluation->plasticity, 0, 1e-12);
  EXPECT_GT(results[1].evaluation->plasticity, 1e-6);
}

TEST_F(EvaluatorTest, EvaluatesASampleWithTheSnapshotOfItsTime) {
  Start();
  SetLoad(1);
  const JobId job = AddJob();
  ASSERT_TRUE(Submit(job, 1, TrueSample({module_})).ok());
  const SampleModule other = BasicBlock(8, 6, testing::Spelling::kExported, /*seed=*/99);
  ASSERT_TRUE(evaluator_->SubmitSnapshot(job, ModuleIndex(0), 2, 3, other.weights).ok());
  ASSERT_TRUE(Submit(job, 2, TrueSample({module_})).ok());
  SetLoad(0);
  const auto results = WaitForResults(2);
  EXPECT_NEAR(results[0].evaluation->plasticity, 0, 1e-12);
  EXPECT_GT(results[1].evaluation->plasticity, 1e-6);
  EXPECT_EQ(evaluator_->counters().queued_bytes, 0u);
}

TEST_F(EvaluatorTest, RunsModulesOneAfterTheOther) {
  Start();
  const SampleModule second = BasicBlock(8, 6, testing::Spelling::kTraced, /*seed=*/2);
  const JobId job = JobId::Random();
  ASSERT_TRUE(evaluator_->SetJob(job, {module_.graph, second.graph}, {})[1].ok());
  ASSERT_TRUE(evaluator_->SubmitSnapshot(job, ModuleIndex(0), 1, 0, module_.weights).ok());
  const auto submit = [&](int64_t step) {
    return evaluator_->SubmitSample(job,
                                    {.module = ModuleIndex(1), .step = step, .tensors = TrueSample({module_, second})});
  };
  ExpectNamed(submit(1), absl::StatusCode::kFailedPrecondition, "NO_REFERENCE");
  ASSERT_TRUE(evaluator_->SubmitSnapshot(job, ModuleIndex(1), 1, 0, second.weights).ok());
  ASSERT_TRUE(submit(2).ok());
  const auto results = WaitForResults(1);
  ASSERT_TRUE(results[0].evaluation.ok()) << results[0].evaluation.status();
  EXPECT_NEAR(results[0].evaluation->plasticity, 0, 1e-12);
  EXPECT_EQ(results[0].module, ModuleIndex(1));
}

TEST_F(EvaluatorTest, KeepsReferencesWhoseGraphIsUnchanged) {
  Start();
  const JobId job = AddJob();
  ASSERT_TRUE(evaluator_->SetJob(job, {module_.graph, std::nullopt}, {})[0].ok());
  EXPECT_TRUE(Submit(job, 1).ok());  // the weights are still there
  graph::ModuleGraph changed = module_.graph;
  changed.nodes.pop_back();
  changed.outputs = {changed.nodes.back().outputs[0]};
  ASSERT_TRUE(evaluator_->SetJob(job, {changed}, {})[0].ok());
  ExpectNamed(Submit(job, 2), absl::StatusCode::kFailedPrecondition, "NO_REFERENCE");
}

TEST_F(EvaluatorTest, ForgetsARemovedJob) {
  Start();
  SetLoad(1);
  const JobId job = AddJob();
  ASSERT_TRUE(Submit(job, 1).ok());
  evaluator_->RemoveJob(job);
  EXPECT_EQ(evaluator_->counters().queued_bytes, 0u);
  ExpectNamed(Submit(job, 2), absl::StatusCode::kNotFound, "UNKNOWN_JOB");
  SetLoad(0);
  const JobId next = AddJob();
  ASSERT_TRUE(Submit(next, 5).ok());
  EXPECT_EQ(WaitForResults(1)[0].job, next);
}

TEST_F(EvaluatorTest, StopsTwiceAndDropsWhatWaits) {
  Start();
  SetLoad(1);
  const JobId job = AddJob();
  ASSERT_TRUE(Submit(job, 1).ok());
  evaluator_->Stop();
  evaluator_->Stop();
  EXPECT_EQ(result_count(), 0u);
}

TEST_F(EvaluatorTest, RefusesOptionsThatMakeNoSense) {
  const auto starts = [](EvaluatorOptions options) {
    if (options.program.empty()) options.program = EGERIA_REFERENCE_PROGRAM;
    return Evaluator::Start(std::move(options), nullptr).ok();
  };
  EXPECT_TRUE(starts({}));
  EXPECT_FALSE(starts({.threads = 0}));
  EXPECT_FALSE(starts({.cpus = {-1}}));
  EXPECT_FALSE(starts({.max_cpu_load = 0}));
  EXPECT_FALSE(starts({.backends = {"int4"}}));
  EXPECT_FALSE(starts({.deadline = absl::ZeroDuration()}));
  EXPECT_FALSE(starts({.program = "/nowhere/egeria-reference"}));
}

// The process egeria-reference that this one has, or 0.
pid_t FindEngine() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream children(task.path() / "children");
    pid_t child = 0;
    if (children >> child) return child;
  }
  return 0;
}
pid_t WaitForEngine() {
  const absl::Time end = absl::Now() + absl::FromChrono(kPatience);
  while (FindEngine() == 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(5));
  return FindEngine();
}

// A twentieth of a second or so for each multiplication.
SampleModule SlowModule(int multiplications) {
  testing::GraphBuilder builder("slow", {8}, 1, testing::Spelling::kExported);
  std::string big = builder.Weight({1024, 1024}, 0.03f), product = big;
  for (int i = 0; i < multiplications; ++i)
    product = builder.Node("aten::mm", "", {testing::Ref(product), testing::Ref(big)});
  const std::string sum = builder.Node("aten::mean", "", {testing::Ref(product)});
  return builder.Finish(builder.Node("aten::add", "Tensor", {testing::Ref(builder.input()), testing::Ref(sum)}));
}

TEST_F(EvaluatorTest, RaisesThePriorityWhenTheDeadlinePassesInMidRun) {
  Start();
  SetLoad(1);  // does not matter to a job that shares the CPU and may run at idle priority
  const SampleModule slow = SlowModule(20);
  const JobId job = JobId::Random();
  ASSERT_TRUE(evaluator_->SetJob(job, {slow.graph}, {.shares_cpu = true, .deadline_steps = 10})[0].ok());
  ASSERT_TRUE(evaluator_->SubmitSnapshot(job, ModuleIndex(0), 1, 0, slow.weights).ok());
  std::mt19937_64 random(1);
  ASSERT_TRUE(
      evaluator_
          ->SubmitSample(
              job, {.step = 100, .tensors = {RandomTensor("x", {4, 8}, random), RandomTensor("g", {4, 4}, random)}})
          .ok());
  const pid_t thread = WaitForEngine();
  ASSERT_GT(thread, 0);
  if (CanLeaveIdlePriority()) {
    while (sched_getscheduler(thread) != SCHED_IDLE) std::this_thread::yield();
    evaluator_->ReportStep(job, 109);
    EXPECT_EQ(sched_getscheduler(thread), SCHED_IDLE);
    evaluator_->ReportStep(job, 110);
    EXPECT_EQ(sched_getscheduler(thread), SCHED_OTHER);
    EXPECT_EQ(result_count(), 0u);  // it was in mid-run
  } else {
    WaitForLoadReads(2);
    EXPECT_EQ(result_count(), 0u);  // waits for the deadline, at normal priority
    evaluator_->ReportStep(job, 110);
  }
  EXPECT_TRUE(WaitForResults(1)[0].evaluation.ok());
}

// One operator that takes minutes: a product of integers, for which there is no fast way.
SampleModule EndlessModule() {
  testing::GraphBuilder builder("endless", {8}, 1, testing::Spelling::kExported);
  const std::string big =
      builder.Node("aten::full", "", {testing::Ints({2500, 2500}), testing::Int(3)});  // integers, as the value is one
  const std::string product = builder.Node("aten::mm", "", {testing::Ref(big), testing::Ref(big)});
  const std::string item =
      builder.Node("aten::select", "int", {testing::Ref(product), testing::Int(0), testing::Int(0)});
  const std::string first =
      builder.Node("aten::narrow", "", {testing::Ref(item), testing::Int(0), testing::Int(0), testing::Int(8)});
  return builder.Finish(builder.Node("aten::add", "Tensor", {testing::Ref(builder.input()), testing::Ref(first)}));
}

class EngineFaultTest : public EvaluatorTest {
 protected:
  JobId AddJobOf(const SampleModule& module) {
    const JobId job = JobId::Random();
    EXPECT_TRUE(evaluator_->SetJob(job, {module.graph}, {})[0].ok());
    EXPECT_TRUE(evaluator_->SubmitSnapshot(job, ModuleIndex(0), 1, 0, module.weights).ok());
    return job;
  }
  static std::vector<WireTensor> SmallSample() {
    std::mt19937_64 random(1);
    return {RandomTensor("x", {kBatch, 8}, random), RandomTensor("g", {kBatch, kBatch}, random)};
  }
  // Sends the signal once the process works at something: it has taken `busy` of the processor by then. For a new
  // process that must be more than it takes to start, on a slow machine too.
  void SignalWorkingEngine(int number, absl::Duration busy = absl::Milliseconds(300)) {
    const pid_t engine = WaitForEngine();
    ASSERT_GT(engine, 0);
    const auto seconds = [engine] {
      clockid_t clock;
      timespec now{};
      if (clock_getcpuclockid(engine, &clock) == 0) clock_gettime(clock, &now);
      return absl::DurationFromTimespec(now);
    };
    absl::Duration last = seconds();
    while (seconds() - last < busy) {
      absl::SleepFor(absl::Milliseconds(10));
      if (FindEngine() != engine) return;
    }
    kill(engine, number);
  }
  void WaitUntilGone(pid_t engine) {
    const absl::Time end = absl::Now() + absl::FromChrono(kPatience);
    while (FindEngine() == engine && absl::Now() < end) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_NE(FindEngine(), engine);
  }
  // Readings of a job that has done nothing wrong go on.
  void ExpectReadingsOf(const JobId& job) {
    const size_t before = result_count();
    ASSERT_TRUE(Submit(job, ++step_).ok());
    const auto results = WaitForResults(before + 1);
    ASSERT_GT(results.size(), before);
    EXPECT_EQ(results.back().job, job);
    EXPECT_TRUE(results.back().evaluation.ok()) << results.back().evaluation.status();
  }
  int64_t step_ = 1000;
};

TEST_F(EngineFaultTest, AnEndlessOperatorCostsOnlyItsOwnGraph) {
  Start({.deadline = absl::Milliseconds(300)});  // the product takes longer on any machine
  const JobId good = AddJob(), endless = AddJobOf(EndlessModule());
  ExpectReadingsOf(good);
  ASSERT_TRUE(Submit(endless, 1, SmallSample()).ok());
  ASSERT_TRUE(Submit(good, 2).ok());
  const auto results = WaitForResults(3);
  ASSERT_EQ(results.size(), 3u);
  ExpectNamed(results[1].evaluation.status(), absl::StatusCode::kDeadlineExceeded, "REFERENCE_TOO_SLOW");
  EXPECT_TRUE(results[1].graph_refused);
  EXPECT_EQ(results[2].job, good);
  EXPECT_TRUE(results[2].evaluation.ok()) << "weights are sent anew: " << results[2].evaluation.status();
  ExpectNamed(Submit(endless, 3, SmallSample()), absl::StatusCode::kFailedPrecondition, "REFERENCE_TOO_SLOW");
  ExpectNamed(evaluator_->SetJob(endless, {EndlessModule().graph}, {})[0], absl::StatusCode::kFailedPrecondition,
              "REFERENCE_TOO_SLOW");
  EXPECT_EQ(evaluator_->counters().engine_ends["deadline"], 1);
  ExpectReadingsOf(good);
}

TEST_F(EngineFaultTest, AGraphIsRefusedThatTheProcessDiesOfTwice) {
  Start({.deadline = absl::Hours(1)});
  const JobId good = AddJob(), bad = AddJobOf(EndlessModule());
  ExpectReadingsOf(good);
  ASSERT_TRUE(Submit(bad, 1, SmallSample()).ok());
  const pid_t first = FindEngine();
  SignalWorkingEngine(SIGSEGV);
  WaitUntilGone(first);
  EXPECT_EQ(result_count(), 1u) << "the first time may be the fault of another graph";
  SignalWorkingEngine(SIGFPE, absl::Seconds(2));
  const auto results = WaitForResults(2);
  ASSERT_EQ(results.size(), 2u);
  ExpectNamed(results[1].evaluation.status(), absl::StatusCode::kInternal, "REFERENCE_CRASHED");
  EXPECT_TRUE(results[1].graph_refused);
  EXPECT_EQ(evaluator_->counters().engine_ends["crash"], 2);
  ExpectReadingsOf(good);
}

TEST_F(EngineFaultTest, AProcessThatIsKilledFromOutsideCostsNobodyAReading) {
  Start();
  const JobId good = AddJob(), slow = AddJobOf(SlowModule(30));
  ExpectReadingsOf(good);
  kill(FindEngine(), SIGKILL);  // while it waits for a sample
  ExpectReadingsOf(good);
  ASSERT_TRUE(Submit(slow, 1, SmallSample()).ok());
  SignalWorkingEngine(SIGTERM);
  const auto results = WaitForResults(3);
  ASSERT_EQ(results.size(), 3u);
  EXPECT_TRUE(results[2].evaluation.ok()) << results[2].evaluation.status();
  EXPECT_EQ(evaluator_->counters().engine_ends["lost"], 2);
}

TEST_F(EngineFaultTest, AProcessThatIsStoppedIsReplaced) {
  Start({.deadline = absl::Seconds(1)});
  const JobId good = AddJob();
  ExpectReadingsOf(good);
  kill(FindEngine(), SIGSTOP);
  ExpectReadingsOf(good);
  EXPECT_EQ(evaluator_->counters().engine_ends["lost"], 1);
}

// Messages that wait at the process's socket; -1: this process may not look.
int WaitingMessages(pid_t engine) {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, engine, 0));
  const int their_socket = static_cast<int>(syscall(SYS_pidfd_getfd, process, 3, 0));
  close(process);
  if (their_socket < 0) return -1;
  std::string bytes(1 << 16, 0);
  const ssize_t size = recv(their_socket, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  close(their_socket);
  int messages = 0;
  for (ssize_t at = 0; at + 4 <= size; ++messages) {
    uint32_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof(length));
    at += 4 + static_cast<ssize_t>(length);
  }
  return messages;
}

TEST_F(EngineFaultTest, TheNextRequestIsThereBeforeTheProcessIsDoneWithOne) {
  Start();
  const JobId job = AddJob();
  ExpectReadingsOf(job);
  SetLoad(100);  // three samples wait for the gate
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Submit(job, ++step_).ok());
  const pid_t engine = FindEngine();
  kill(engine, SIGSTOP);
  SetLoad(0);
  if (WaitingMessages(engine) < 0) {
    kill(engine, SIGCONT);
    GTEST_SKIP() << "descriptors of another process cannot be looked at here";
  }
  int most = 0;
  for (int looks = 0; looks < 2000 && most < 2; ++looks) {
    most = std::max(most, WaitingMessages(engine));
    absl::SleepFor(absl::Milliseconds(5));
  }
  kill(engine, SIGCONT);
  EXPECT_EQ(most, 2);
  EXPECT_EQ(WaitForResults(4).size(), 4u);
}

TEST_F(EngineFaultTest, StopsInTimeDuringAnEndlessOperator) {
  Start({.deadline = absl::Hours(1)});
  const JobId endless = AddJobOf(EndlessModule());
  ASSERT_TRUE(Submit(endless, 1, SmallSample()).ok());
  SignalWorkingEngine(0);
  const pid_t engine = FindEngine();
  const absl::Time start = absl::Now();
  evaluator_->Stop();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  evaluator_.reset();
  EXPECT_NE(kill(engine, 0), 0) << "the process goes, too";
  EXPECT_EQ(result_count(), 0u);
}

TEST_F(EngineFaultTest, MemoryIsRefusedBeforeTheMachineIsOutOfIt) {
  Start({.max_weight_bytes = size_t{8} << 20, .memory_bytes = size_t{64} << 20});
  const JobId good = AddJob();
  SampleModule greedy = EndlessModule();
  greedy.graph.nodes[0] = {
      "aten::full", "", {testing::Ints({4096, 4096}), testing::Int(3)}, {}, greedy.graph.nodes[0].outputs};
  const JobId bad = AddJobOf(greedy);  // 128 MiB
  ASSERT_TRUE(Submit(bad, 1, SmallSample()).ok());
  ExpectNamed(WaitForResults(1)[0].evaluation.status(), absl::StatusCode::kResourceExhausted, "GRAPH_TOO_LARGE");
  ExpectReadingsOf(good);
  EXPECT_EQ(evaluator_->counters().engine_ends, (std::map<std::string, int64_t>{}));
}

TEST_F(EngineFaultTest, NamesAGraphThatDoesNotFitTheOperatorsSchemas) {
  Start();
  SampleModule wrong = module_;
  wrong.graph.nodes[2].args.push_back(testing::Int(1));
  const JobId job = AddJobOf(wrong), good = AddJob();
  ASSERT_TRUE(Submit(job, 1).ok());
  const auto results = WaitForResults(1);
  ExpectNamed(results[0].evaluation.status(), absl::StatusCode::kInvalidArgument, "BAD_ARGUMENT");
  EXPECT_TRUE(results[0].graph_refused);
  ExpectNamed(Submit(job, 2), absl::StatusCode::kFailedPrecondition, "BAD_ARGUMENT");
  ExpectReadingsOf(good);
}

// A module with one weight of so many floats that nothing reads.
SampleModule HeavyModule(int64_t floats) {
  testing::GraphBuilder builder("heavy", {8}, 1, testing::Spelling::kExported);
  builder.Weight({floats}, 1);
  return builder.Finish(builder.Relu(builder.input()));
}

TEST_F(EngineFaultTest, WeightsOfOneJobAreNotInTheWayOfAnothersSamples) {
  Start({.max_queue_bytes = size_t{1} << 20, .max_weight_bytes = size_t{16} << 20});
  const JobId good = AddJob();
  const JobId heavy = AddJobOf(HeavyModule(3 << 20));  // 12 MiB, far more than samples may take
  ExpectReadingsOf(good);
  ASSERT_TRUE(Submit(heavy, 1, SmallSample()).ok());
  EXPECT_TRUE(WaitForResults(2)[1].evaluation.ok());
}

TEST_F(EngineFaultTest, TheJobWithTheMostWeightsGivesWay) {
  Start({.max_weight_bytes = size_t{16} << 20});
  const JobId heavy = AddJobOf(HeavyModule(3 << 20));  // 12 MiB
  const SampleModule two = HeavyModule(2 << 20);
  const JobId other = AddJobOf(two);  // 8 MiB: together too much
  ExpectNamed(Submit(heavy, 1, SmallSample()), absl::StatusCode::kFailedPrecondition, "NO_REFERENCE");
  ExpectNamed(evaluator_->SubmitSnapshot(heavy, ModuleIndex(0), 2, 3, HeavyModule(3 << 20).weights),
              absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
  ASSERT_TRUE(Submit(other, 2, SmallSample()).ok());
  EXPECT_TRUE(WaitForResults(1)[0].evaluation.ok());
  EXPECT_EQ(evaluator_->counters().weight_bytes, two.weights[0].size());
  const JobId good = AddJob();
  ExpectReadingsOf(good);
}

int AnyCpu() {
  cpu_set_t allowed;
  EXPECT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  return cpu;
}

TEST_F(EvaluatorTest, TellsWhatItTookOfTheProcessorNotHowLongItWaitedForIt) {
  const int cpu = AnyCpu();
  Start({.cpus = {cpu}, .backends = {"aten"}});
  const SampleModule slow = SlowModule(6);
  const JobId job = JobId::Random();
  ASSERT_TRUE(evaluator_->SetJob(job, {slow.graph}, {})[0].ok());
  ASSERT_TRUE(evaluator_->SubmitSnapshot(job, ModuleIndex(0), 1, 0, slow.weights).ok());
  std::atomic<int> running{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> others;  // they leave it about a quarter of its CPU
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      EXPECT_TRUE(PinToCpus({cpu}));
      ++running;
      while (!over) continue;
    });
  }
  while (running < 3) std::this_thread::yield();
  std::mt19937_64 random(1);
  const absl::Time start = absl::Now();
  EXPECT_TRUE(Submit(job, 1, {RandomTensor("x", {4, 8}, random), RandomTensor("g", {4, 4}, random)}).ok());
  const std::vector<Evaluator::Result> results = WaitForResults(1);
  const absl::Duration passed = absl::Now() - start;
  over = true;
  for (std::thread& other : others) other.join();
  ASSERT_TRUE(!results.empty() && results[0].evaluation.ok());
  EXPECT_GT(results[0].evaluation->compute, absl::ZeroDuration());
  EXPECT_LT(results[0].evaluation->compute, passed / 2);
}

}  // namespace
}  // namespace egeria::reference

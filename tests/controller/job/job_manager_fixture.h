#ifndef EGERIA_TESTS_CONTROLLER_JOB_JOB_MANAGER_FIXTURE_H_
#define EGERIA_TESTS_CONTROLLER_JOB_JOB_MANAGER_FIXTURE_H_

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/job/job_manager.h"
#include "gtest/gtest.h"
#include "tests/support/failing_env.h"
#include "tests/support/fake_evaluator.h"
#include "tests/support/job_fixtures.h"

namespace egeria::controller {

// A stream as the manager sees it; remembers what it is told.
class Stream : public SessionListener {
 public:
  void OnDirectiveChanged() override { ++pushes; }
  void OnUploadRefused(int64_t upload_id, const absl::Status& reason) override {
    refused.emplace_back(upload_id, std::string(reason.message()));
  }
  void OnClose(const absl::Status& status) override { closed = status; }

  int pushes = 0;
  std::vector<std::pair<int64_t, std::string>> refused;
  std::optional<absl::Status> closed;
  SessionId id;
};

inline std::vector<WireTensor> TensorsOf(const ::egeria::testing::TestUpload& upload) {
  std::vector<WireTensor> tensors;
  size_t at = 0;
  for (const v1::TensorSpec& proto : upload.begin.tensors()) {
    TensorSpec spec{proto.name(), DataType::kFloat32, {proto.shape().begin(), proto.shape().end()}};
    const size_t size = *ByteSize(spec);
    tensors.push_back(MakeWireTensor(std::move(spec), upload.bytes.data() + at));
    at += size;
  }
  return tensors;
}

class JobManagerTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(); }

  void Start() {
    auto journal = Journal::Open(
        folder_ / "journal", {.env = &disk_, .retry = absl::ZeroDuration(), .max_backlog_bytes = max_backlog_bytes_});
    ASSERT_TRUE(journal.ok()) << journal.status();
    options_.clock = [this] { return now_; };
    options_.wall_clock = [this] { return wall_; };
    options_.host = "here";
    auto manager = JobManager::Start(
        options_, *std::move(journal),
        [this](reference::Evaluator::Callback on_result) -> absl::StatusOr<std::unique_ptr<reference::Evaluator>> {
          auto fake = std::make_unique<::egeria::testing::FakeEvaluator>(
              std::move(on_result),
              [this](const JobId& job, int module, int64_t step) { return script_(job, module, step); });
          evaluator_ = fake.get();
          return std::unique_ptr<reference::Evaluator>(std::move(fake));
        });
    ASSERT_TRUE(manager.ok()) << manager.status();
    manager_ = *std::move(manager);
  }
  void Restart() {
    manager_.reset();
    Start();
  }

  std::shared_ptr<Stream> Open(const v1::RegisterJobRequest& job, int rank = 0, uint64_t incarnation = 1) {
    auto registered = manager_->registrar().Register(job);
    EXPECT_TRUE(registered.ok()) << registered.status();
    v1::Open open;
    open.set_job_id(job.job_id());
    open.set_generation(job.generation());
    open.set_rank(rank);
    open.set_incarnation(incarnation);
    auto stream = std::make_shared<Stream>();
    auto id = manager_->sessions().Open(open, stream);
    EXPECT_TRUE(id.ok()) << id.status();
    stream->id = id.value_or(SessionId());
    return stream;
  }

  v1::Directive Beat(const Stream& stream, int64_t step, double rate = 0.1, int frozen_prefix = 0) {
    v1::Heartbeat heartbeat;
    heartbeat.set_step(step);
    heartbeat.add_learning_rates(rate);
    heartbeat.set_frozen_prefix(frozen_prefix);
    EXPECT_TRUE(manager_->sessions().Heartbeat(stream.id, heartbeat).ok());
    return manager_->sessions().DirectiveFor(stream.id).value_or(v1::Directive());
  }

  absl::Status Upload(const Stream& stream, const ::egeria::testing::TestUpload& upload) {
    if (absl::Status wanted = manager_->uploads().Check(stream.id, upload.begin); !wanted.ok()) return wanted;
    return manager_->uploads().Finish(stream.id, upload.begin, TensorsOf(upload));
  }

  // Sends what the directive asks for at `step`: a snapshot, else a sample.
  absl::Status Serve(const Stream& stream, int64_t step) {
    const v1::Directive directive = *manager_->sessions().DirectiveFor(stream.id);
    if (directive.has_snapshot()) {
      for (int i = directive.snapshot().first_module(); i <= directive.snapshot().module(); ++i) {
        const auto snapshot = testing::SnapshotUpload(++upload_, directive.snapshot(), i, step);
        if (absl::Status sent = Upload(stream, snapshot); !sent.ok()) return sent;
      }
      return absl::OkStatus();
    }
    if (directive.has_sampling()) return Upload(stream, testing::SampleUpload(++upload_, directive.sampling(), step));
    return absl::OkStatus();
  }

  // Trains until a plan comes.
  void TrainUntilPlan(const Stream& stream, int64_t* step, PlanId plan) {
    for (int i = 0; i < 200 && Summary(stream).plan_id() < plan.value(); ++i) {
      *step += 10;
      Beat(stream, *step);
      ASSERT_TRUE(Serve(stream, *step).ok());
    }
    ASSERT_EQ(Summary(stream).plan_id(), plan.value());
  }

  v1::JobSummary Summary(const std::string& id) {
    const v1::ListJobsResponse jobs = manager_->ListJobs();
    for (const v1::JobSummary& job : jobs.jobs()) {
      if (job.job_id() == id) return job;
    }
    return {};
  }
  v1::JobSummary Summary(const Stream&) { return Summary(::egeria::testing::TestJobId(1)); }

  ::egeria::testing::TempFolder folder_;
  ::egeria::testing::FailingEnv disk_;
  size_t max_backlog_bytes_ = size_t{1} << 20;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  absl::Time wall_ = absl::FromUnixSeconds(1'700'000'000);  // somebody may set it
  JobManagerOptions options_;
  ::egeria::testing::FakeEvaluator::Script script_ = [](const JobId&, int, int64_t step) {
    return absl::StatusOr<double>(0.001 + 0.01 * std::exp(-static_cast<double>(step) / 20));
  };
  std::unique_ptr<JobManager> manager_;
  ::egeria::testing::FakeEvaluator* evaluator_ = nullptr;
  int64_t upload_ = 0;
};

}  // namespace egeria::controller

#endif  // EGERIA_TESTS_CONTROLLER_JOB_JOB_MANAGER_FIXTURE_H_

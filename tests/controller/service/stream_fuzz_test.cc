// Random and mutated messages to the protocol of a rank's stream. EGERIA_FUZZ_SECONDS sets how long (5 by
// default), EGERIA_FUZZ_SEED the first seed.
#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "controller/service/rank_session.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "tests/support/fake_evaluator.h"
#include "tests/support/job_fixtures.h"

namespace egeria::controller {
namespace {

using ::egeria::testing::EmptySnapshot;
using ::egeria::testing::FakeEvaluator;
using ::egeria::testing::MakeLocal;
using ::egeria::testing::MessagesOf;
using ::egeria::testing::ReadingFor;
using ::egeria::testing::SampleUpload;
using ::egeria::testing::SnapshotUpload;
using ::egeria::testing::TempFolder;
using ::egeria::testing::TestRegistration;

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

class Ignore : public SessionListener {
 public:
  void OnDirectiveChanged() override {}
  void OnUploadRefused(int64_t, const absl::Status&) override {}
  void OnClose(const absl::Status&) override { closed = true; }
  bool closed = false;
};

// One simulated rank, which means well until a mutation strikes.
class Fuzzer {
 public:
  Fuzzer(JobManager* manager, UploadBudget* budget, unsigned seed)
      : manager_(manager), budget_(budget), seed_(seed), random_(seed) {}

  void Run() {
    // A generation that a mutation has sent sky-high ends a job for all that follow, so that there are new
    // jobs all the time.
    const int job = static_cast<int>(seed_ / kSessionsPerGroup * 4 + random_() % 4);
    v1::RegisterJobRequest registration = TestRegistration(job);
    if (job % 2 == 0) MakeLocal(&registration);
    registration.set_losses_unreported(job % 3 == 0);
    registration.mutable_policy()->mutable_plasticity()->set_bootstrap(job % 5 == 0);
    if (job % 4 == 1) registration.mutable_policy()->mutable_gradnorm();
    if (job % 4 == 3) {
      registration.mutable_policy()->mutable_auto_()->set_start(0.1);
      registration.mutable_policy()->mutable_auto_()->set_interval_steps(1);
      registration.mutable_policy()->mutable_auto_()->set_min_readings(4);
    }
    if (job % 4 == 1 || job % 4 == 3) registration.set_total_steps(600);
    if (random_() % 8 == 0) registration.set_generation(static_cast<int64_t>(random_() % 3));
    if (random_() % 4 == 0) Mutate(&registration);
    ++outcomes[CodeOf(manager_->registrar().Register(registration).status())];

    UploadLimits limits;
    limits.max_upload_bytes = 1 << 16;
    RankSession session(manager_, ThisProcess(), limits, budget_);
    auto listener = std::make_shared<Ignore>();
    v1::WorkerMessage open;
    open.mutable_open()->set_job_id(registration.job_id());
    open.mutable_open()->set_generation(registration.generation());
    open.mutable_open()->set_rank(static_cast<int>(random_() % 2));
    open.mutable_open()->set_incarnation(random_() % 2);
    if (!Handle(session, listener, open)) return;
    for (int i = 0; i < 60 && !listener->closed; ++i) {
      for (const v1::WorkerMessage& message : NextMessages(session)) {
        if (!Handle(session, listener, message)) return;
      }
    }
  }

  static constexpr unsigned kSessionsPerGroup = 64;
  static std::map<std::string, int64_t> outcomes;

 private:
  static std::string CodeOf(const absl::Status& status) { return absl::StatusCodeToString(status.code()); }

  bool Handle(RankSession& session, const std::shared_ptr<Ignore>& listener, v1::WorkerMessage message) {
    if (random_() % 32 == 0) Mutate(&message);
    RankSession::Reply reply;
    const absl::Status handled = session.Handle(message, listener, &reply);
    ++outcomes[CodeOf(handled)];
    for (const v1::UploadResult& result : reply.results) {
      const std::string name = result.reason().substr(0, result.reason().find(']') + 1);
      EXPECT_FALSE(name.empty()) << "a refusal without a name: " << result.reason();
      ++outcomes[name];
    }
    // Errors that the protocol does not list must not happen, whatever comes in.
    EXPECT_NE(handled.code(), absl::StatusCode::kInternal) << handled;
    EXPECT_NE(handled.code(), absl::StatusCode::kUnknown) << handled;
    return handled.ok();
  }

  std::vector<v1::WorkerMessage> NextMessages(const RankSession& session) {
    std::vector<v1::WorkerMessage> messages(1);
    const auto directive = manager_->sessions().DirectiveFor(session.id());
    step_ += static_cast<int64_t>(random_() % 20);
    if (directive && directive->has_gradients() && random_() % 4 != 0) {
      *messages[0].mutable_gradients() = Gradients(directive->gradients());
      return messages;
    }
    const bool local = random_() % 2 == 0;  // right for half of the jobs
    if (local && directive && directive->has_snapshot()) {
      return MessagesOf(EmptySnapshot(++upload_, directive->snapshot(), step_));
    }
    if (local && directive && directive->has_sampling()) {
      const double bad[] = {-0.5, std::numeric_limits<double>::quiet_NaN(), 1e300, 0};
      const double good = 0.001 + 0.1 / static_cast<double>(1 + step_);
      const double plasticity = random_() % 8 == 0 ? bad[random_() % 4] : good;
      *messages[0].mutable_reading() = ReadingFor(++upload_, directive->sampling(), step_, plasticity);
      return messages;
    }
    if (directive && directive->has_snapshot() && random_() % 2 == 0) {
      return MessagesOf(SnapshotUpload(++upload_, directive->snapshot(), directive->snapshot().module(), step_),
                        1 + random_() % 64);
    }
    if (directive && directive->has_sampling() && random_() % 4 != 0) {
      const float value = random_() % 16 == 0 ? std::numeric_limits<float>::infinity() : 1.0f;
      return MessagesOf(SampleUpload(++upload_, directive->sampling(), step_, value), 1 + random_() % 64);
    }
    v1::Heartbeat* heartbeat = messages[0].mutable_heartbeat();
    heartbeat->set_step(step_);
    heartbeat->add_learning_rates(random_() % 32 == 0 ? 0.001 : 0.1);
    if (step_ > 4) {
      heartbeat->mutable_losses()->set_first_step(step_ - 3);
      for (int i = 0; i < 4; ++i) heartbeat->mutable_losses()->add_values(1);
    }
    if (directive) heartbeat->set_plan_watermark(directive->plans_size() > 0 ? directive->plans(0).plan_id() : 0);
    heartbeat->set_finished(random_() % 512 == 0);
    return messages;
  }

  v1::GradientReading Gradients(const v1::GradientRequest& request) {
    constexpr int kModules = 3;
    v1::GradientReading reading;
    reading.set_upload_id(++upload_);
    reading.set_step(step_);
    reading.set_request_version(request.version());
    reading.set_first_module(request.first_module());
    reading.set_parts(random_() % 16 == 0 ? static_cast<int>(random_() % 3) - 1 : 2);
    reading.set_samples(random_() % 16 == 0 ? -1 : 64);
    const double bad[] = {-0.5, std::numeric_limits<double>::quiet_NaN(), 1e300, 0};
    for (int i = request.first_module(); i < kModules + (random_() % 32 == 0 ? 1 : 0); ++i) {
      reading.add_mean_of_squares(random_() % 64 == 0 ? bad[random_() % 4] : 1);
      reading.add_square_of_mean(random_() % 64 == 0 ? bad[random_() % 4] : 0.5 + 0.001 * (random_() % 8));
    }
    return reading;
  }

  // Damages the message's bytes; what can no longer be parsed never reaches a handler.
  template <typename Message>
  void Mutate(Message* message) {
    std::string bytes = message->SerializeAsString();
    for (unsigned i = random_() % 4 + 1; i > 0 && !bytes.empty(); --i) {
      const size_t at = random_() % bytes.size();
      switch (random_() % 4) {
        case 0: bytes[at] = static_cast<char>(random_()); break;
        case 1: bytes.erase(at, 1 + random_() % 8); break;
        case 2: bytes.insert(at, std::string(1 + random_() % 12, static_cast<char>(random_()))); break;
        default: bytes.insert(at, bytes.substr(random_() % bytes.size(), random_() % 32));
      }
    }
    Message mutated;
    if (mutated.ParseFromString(bytes)) *message = mutated;
  }

  JobManager* const manager_;
  UploadBudget* const budget_;
  const unsigned seed_;
  std::mt19937 random_;
  int64_t step_ = 0;
  int64_t upload_ = 0;
};

std::map<std::string, int64_t> Fuzzer::outcomes;

TEST(StreamFuzz, NoMessageBreaksTheController) {
  TempFolder folder;
  JobManagerOptions options;
  options.max_observations_per_job = 2'000;
  options.registration.max_modules = 16;
  options.silent_retention = options.finished_retention = absl::ZeroDuration();
  ConfigureLogging("fuzz", LogLevel::kError);
  google::protobuf::SetLogHandler(nullptr);  // it reports every string that is not UTF-8
  auto journal = Journal::Open(folder / "journal");
  ASSERT_TRUE(journal.ok());
  auto manager = JobManager::Start(
      options, *std::move(journal),
      [](reference::Evaluator::Callback on_result) -> absl::StatusOr<std::unique_ptr<reference::Evaluator>> {
        return std::make_unique<FakeEvaluator>(std::move(on_result),
                                               [](const JobId&, int, int64_t step) -> absl::StatusOr<double> {
                                                 if (step % 97 == 0)
                                                   return absl::InternalError("[REFERENCE_FAILED] now and then");
                                                 return 0.001 + 0.1 / static_cast<double>(1 + step % 400);
                                               });
      });
  ASSERT_TRUE(manager.ok()) << manager.status();
  UploadBudget budget(size_t{1} << 20);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(FromEnvironment("EGERIA_FUZZ_SECONDS", 5));
  const int64_t first_seed = FromEnvironment("EGERIA_FUZZ_SEED", 1);
  int64_t seed = first_seed;
  while (std::chrono::steady_clock::now() < end && !::testing::Test::HasFailure()) {
    SCOPED_TRACE(seed);
    if (seed % Fuzzer::kSessionsPerGroup == 0) (*manager)->Maintain();
    Fuzzer((*manager).get(), &budget, static_cast<unsigned>(seed++)).Run();
  }
  EXPECT_TRUE(budget.Take(size_t{1} << 19, 0)) << "every upload gave its bytes back";
  EXPECT_EQ((*manager)->View().journal.damaged_jobs, 0);
  for (const auto& [outcome, count] : Fuzzer::outcomes) RecordProperty(outcome, static_cast<int>(count));
  std::string summary;
  for (const auto& [outcome, count] : Fuzzer::outcomes) absl::StrAppend(&summary, " ", outcome, "=", count);
  std::printf("%lld sessions:%s\n", static_cast<long long>(seed - first_seed), summary.c_str());
  EXPECT_GT(Fuzzer::outcomes["OK"], 0);
  EXPECT_GT(Fuzzer::outcomes["INVALID_ARGUMENT"], 0);
  EXPECT_GT(Fuzzer::outcomes["[READING_NEGATIVE]"], 0);
  EXPECT_GT(Fuzzer::outcomes["[NOT_LOCAL]"], 0);
  EXPECT_GT(Fuzzer::outcomes["[BAD_GRADIENTS]"], 0);
  EXPECT_GT(Fuzzer::outcomes["[GRADIENTS_NOT_FINITE]"], 0);

  // Whatever they have done, it can be recovered.
  std::map<std::string, std::string> before;
  const v1::ListJobsResponse jobs = (*manager)->ListJobs();
  for (const v1::JobSummary& job : jobs.jobs()) before[job.job_id()] = (*manager)->DebugString(JobId(job.job_id()));
  manager->reset();
  journal = Journal::Open(folder / "journal");
  ASSERT_TRUE(journal.ok());
  manager = JobManager::Start(
      options, *std::move(journal),
      [](reference::Evaluator::Callback on_result) -> absl::StatusOr<std::unique_ptr<reference::Evaluator>> {
        return std::make_unique<FakeEvaluator>(std::move(on_result), nullptr);
      });
  ASSERT_TRUE(manager.ok());
  for (const auto& [id, state] : before) EXPECT_EQ((*manager)->DebugString(JobId(id)), state);
}

}  // namespace
}  // namespace egeria::controller

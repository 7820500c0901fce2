// A real controller and simulated ranks over real gRPC: what the protocol promises, end to end.
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/monotonic.h"
#include "controller/service/rank_session.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/cluster/test_cluster.h"

namespace egeria::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Plasticity that falls and then stays: module 0 freezes once its slopes are flat.
absl::StatusOr<double> FallsThenStays(const JobId&, int module, int64_t step) {
  return 1e-3 + 1e-2 * std::exp(-static_cast<double>(step) / 20);
}

// Trains on: heartbeats, snapshots and samples every 10 steps, until the controller sends a plan (returned)
// or `last_step` is done.
std::optional<v1::Plan> TrainUntilPlan(SimulatedRank& rank, int64_t last_step) {
  int64_t step = rank.heartbeat.step();
  v1::Directive directive = rank.Beat();
  while (step < last_step) {
    step += 10;
    rank.Serve(directive, step);
    directive = rank.BeatAt(step);
    if (directive.plans_size() > 0) return directive.plans(0);
  }
  return std::nullopt;
}

TEST(Cluster, AJobFreezesItsFirstModule) {
  TestCluster cluster(FallsThenStays);
  const auto job = TestRegistration(1);
  auto rank0 = cluster.Rank(job, 0), rank1 = cluster.Rank(job, 1);
  rank0->Connect();
  rank1->Connect();
  const auto plan = TrainUntilPlan(*rank0, 1'000);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->plan_id(), 1);
  EXPECT_EQ(plan->generation(), 0);
  EXPECT_EQ(plan->frozen_prefix(), 1);
  EXPECT_THAT(plan->reason(), HasSubstr("slope"));
  // The other rank is told without asking.
  const auto pushed = rank1->ReadDirective([](const v1::Directive& d) { return d.plans_size() > 0; });
  ASSERT_TRUE(pushed.has_value());
  EXPECT_EQ(pushed->plans(0).plan_id(), 1);
  EXPECT_FALSE(pushed->has_sampling()) << "one rank samples for all";
}

TEST(Cluster, RankZeroIsToldWhatTheReferenceTakesOfItsCores) {
  controller::JobManagerOptions options;
  options.host = "here";
  options.cores = 4;
  TestCluster cluster(FallsThenStays, options);
  auto near = TestRegistration(1), far = TestRegistration(2), gpu = TestRegistration(3);
  near.set_host("here");
  far.set_host("there");
  gpu.set_host("here");
  gpu.set_device_type("cuda");
  for (const auto& job : {near, far, gpu}) {
    auto rank = cluster.Rank(job, 0), other = cluster.Rank(job, 1);
    rank->Connect();
    other->Connect();
    ASSERT_TRUE(TrainUntilPlan(*rank, 1'000).has_value());
    double reference = 0;
    for (const controller::JobView& view : cluster.manager()->View().jobs) {
      if (view.summary.job_id() == job.job_id()) reference = view.totals.reference_seconds.at("fake");
    }
    EXPECT_GT(reference, 0);
    // A directive that an earlier message has brought about may come before the answer to the heartbeat.
    if (job.job_id() == near.job_id()) {
      const v1::Directive told =
          rank->BeatUntil([&](const v1::Directive& d) { return d.reference_seconds() >= reference / 4; });
      EXPECT_LT(told.reference_seconds(), reference);
    } else {
      EXPECT_EQ(rank->Beat().reference_seconds(), 0);
    }
    const auto to_other = other->ReadDirective([](const v1::Directive& d) { return d.plans_size() > 0; });
    ASSERT_TRUE(to_other.has_value());
    EXPECT_EQ(to_other->reference_seconds(), 0) << "one account counts it";
  }
}

TEST(Cluster, ABudgetThatIsOutOfReachIsSaidOnceWhenTheJobRegisters) {
  TestCluster cluster;
  auto job = TestRegistration(1);
  job.set_total_steps(1'000);
  auto* entry = job.mutable_policy()->mutable_schedule()->add_entries();
  entry->set_fraction(0.9);
  entry->set_frozen_prefix(1);
  const auto said = [&](double budget) {
    job.set_budget(budget);
    job.set_job_id(JobId::Random().text());
    ::testing::internal::CaptureStderr();
    cluster.Rank(job, 0)->Connect();
    cluster.Rank(job, 1)->Connect();
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string warned = said(0.5);
  EXPECT_THAT(warned, HasSubstr("a budget of 50 % is out of reach: this policy plans to save"));
  EXPECT_EQ(warned.find("is out of reach"), warned.rfind("is out of reach"));
  EXPECT_THAT(said(0.001), ::testing::Not(HasSubstr("out of reach")));
  EXPECT_THAT(said(0), ::testing::Not(HasSubstr("out of reach")));
}

TEST(Cluster, APlanIsSentAgainUntilTheWatermarkHasIt) {
  TestCluster cluster(FallsThenStays);
  auto rank = cluster.Rank(TestRegistration(1), 0);
  rank->Connect();
  ASSERT_TRUE(TrainUntilPlan(*rank, 1'000).has_value());
  EXPECT_EQ(rank->Beat().plans_size(), 1);
  EXPECT_EQ(rank->Beat().plans_size(), 1);
  rank->heartbeat.set_plan_watermark(1);
  rank->BeatUntil([](const v1::Directive& directive) { return directive.plans_size() == 0; });
}

TEST(Cluster, ARankThatWasCutOffGetsThePlansOnItsReturn) {
  TestCluster cluster(FallsThenStays);
  const auto job = TestRegistration(1);
  auto rank0 = cluster.Rank(job, 0), rank1 = cluster.Rank(job, 1);
  rank0->Connect();
  rank1->Connect();
  rank1->Cut();
  ASSERT_TRUE(TrainUntilPlan(*rank0, 1'000).has_value());
  ASSERT_TRUE(rank1->Open());
  const v1::Directive directive = rank1->BeatUntil([](const v1::Directive& d) { return d.plans_size() == 1; });
  EXPECT_EQ(directive.plans(0).plan_id(), 1);
}

TEST(Cluster, AnUnknownJobIsToldToRegister) {
  TestCluster cluster;
  auto rank = cluster.Rank(TestRegistration(1), 0);
  EXPECT_FALSE(rank->Open());
  const grpc::Status status = rank->Status();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), StartsWith("[UNKNOWN_JOB]"));
}

TEST(Cluster, AnOlderGenerationIsRefusedAndItsStreamsEnd) {
  TestCluster cluster;
  auto job = TestRegistration(1);
  auto old_rank = cluster.Rank(job, 0, 1);
  old_rank->Connect();
  job.set_generation(1);
  auto new_rank = cluster.Rank(job, 0, 2);
  new_rank->Connect();
  EXPECT_THAT(old_rank->Status().error_message(), StartsWith("[STALE_GENERATION]"));
  EXPECT_THAT(old_rank->Register().error_message(), StartsWith("[STALE_GENERATION]"));
  EXPECT_FALSE(old_rank->Open());
  EXPECT_THAT(old_rank->Status().error_message(), StartsWith("[STALE_GENERATION]"));
  EXPECT_EQ(new_rank->Beat().generation(), 1);
}

TEST(Cluster, TwoJobsWithOneIdConflict) {
  TestCluster cluster;
  auto first = cluster.Rank(TestRegistration(1, 3), 0);
  first->Connect();
  auto second = cluster.Rank(TestRegistration(1, 4), 0);
  const grpc::Status status = second->Register();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(status.error_message(), StartsWith("[JOB_CONFLICT]"));
  first->Beat();
}

TEST(Cluster, ASecondProcessOfTheSameRankIsRefused) {
  TestCluster cluster;
  const auto job = TestRegistration(1);
  auto rank = cluster.Rank(job, 0, 1), impostor = cluster.Rank(job, 0, 2);
  rank->Connect();
  ASSERT_TRUE(impostor->Register().ok());
  EXPECT_FALSE(impostor->Open());
  EXPECT_THAT(impostor->Status().error_message(), StartsWith("[RANK_CONFLICT]"));
  rank->Beat();
}

TEST(Cluster, ANewStreamOfTheSameProcessReplacesItsOldOne) {
  TestCluster cluster;
  const auto job = TestRegistration(1);
  auto before = cluster.Rank(job, 0, 7), after = cluster.Rank(job, 0, 7);
  before->Connect();
  ASSERT_TRUE(after->Open());
  EXPECT_EQ(before->Status().error_code(), grpc::StatusCode::ABORTED);
  after->Beat();
  EXPECT_EQ(cluster.Summary(job.job_id()).connected_ranks(), 1);
}

TEST(Cluster, AMessageThatBreaksTheProtocolEndsOnlyItsStream) {
  TestCluster cluster;
  const auto job = TestRegistration(1);
  auto good = cluster.Rank(job, 1);
  good->Connect();
  const std::vector<std::pair<std::string, v1::WorkerMessage>> messages = [] {
    std::vector<std::pair<std::string, v1::WorkerMessage>> all(6);
    all[0].first = "[BAD_MESSAGE]";  // nothing at all
    all[1].first = "[BAD_MESSAGE]";
    all[1].second.mutable_upload_chunk()->set_upload_id(5);
    all[2].first = "[BAD_MESSAGE]";
    all[2].second.mutable_heartbeat()->set_step(-1);
    all[3].first = "[HEARTBEAT_TOO_LARGE]";
    for (int i = 0; i < 65'537; ++i) all[3].second.mutable_heartbeat()->mutable_losses()->add_values(1);
    all[4].first = "[BAD_MESSAGE]";
    all[4].second.mutable_open()->set_rank(0);
    all[5].first = "[UPLOAD_TOO_LARGE]";
    auto* begin = all[5].second.mutable_upload_begin();
    begin->set_upload_id(1);
    begin->mutable_sample();
    auto* tensor = begin->add_tensors();
    tensor->set_dtype(v1::DATA_TYPE_FLOAT32);
    tensor->add_shape(int64_t{1} << 36);
    return all;
  }();
  for (const auto& [error, message] : messages) {
    auto rank = cluster.Rank(job, 0);
    rank->Connect();
    ASSERT_TRUE(rank->Send(message));
    EXPECT_THAT(rank->Status().error_message(), StartsWith(error));
  }
  good->Beat();
}

TEST(Cluster, ASampleThatIsNotFiniteIsRefusedByNameAndTheOthersGoOn) {
  TestCluster cluster(FallsThenStays);
  auto rank = cluster.Rank(TestRegistration(1), 0);
  auto other = cluster.Rank(TestRegistration(2), 0);
  rank->Connect();
  other->Connect();
  rank->Serve(rank->Beat(), 10);
  rank->heartbeat.set_step(10);
  const v1::Directive directive = rank->BeatUntil([](const v1::Directive& d) { return d.has_sampling(); });
  const auto upload =
      SampleUpload(rank->NextUploadId(), directive.sampling(), 20, std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(rank->Send(upload));
  const auto result = rank->ReadUploadResult();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->upload_id(), upload.begin.upload_id());
  EXPECT_THAT(result->reason(), StartsWith("[SAMPLE_NOT_FINITE]"));
  EXPECT_TRUE(TrainUntilPlan(*rank, 1'000).has_value()) << "the job itself goes on";
  EXPECT_TRUE(TrainUntilPlan(*other, 1'000).has_value());
}

TEST(Cluster, AnUploadInManyChunksArrives) {
  TestCluster cluster;
  auto rank = cluster.Rank(TestRegistration(1), 0);
  rank->Connect();
  const v1::Directive directive = rank->Beat();
  ASSERT_TRUE(directive.has_snapshot());
  ASSERT_TRUE(rank->Send(SnapshotUpload(rank->NextUploadId(), directive.snapshot(), 0, 5), /*chunk=*/3));
  rank->BeatUntil([](const v1::Directive& d) { return d.has_sampling(); });
  EXPECT_EQ(cluster.evaluator()->counters().snapshots, 1);
}

TEST(Cluster, EndsStreamsThatStallAndNoOthers) {
  TestCluster cluster;
  grpc::ClientContext context;
  auto stub = v1::Controller::NewStub(cluster.Channel());
  auto unopened = stub->Stream(&context);
  auto rank = cluster.Rank(TestRegistration(1), 0), stalled = cluster.Rank(TestRegistration(2), 0);
  rank->Connect();
  stalled->Connect();
  const v1::Directive directive = stalled->Beat();
  ASSERT_TRUE(directive.has_snapshot());
  const auto messages = MessagesOf(SnapshotUpload(1, directive.snapshot(), 0, 5), /*chunk=*/3);
  ASSERT_TRUE(stalled->Send(messages[0]) && stalled->Send(messages[1]));
  stalled->Beat();
  cluster.server()->EndSilentStreams(MonotonicNow() + absl::Seconds(29));
  stalled->Beat();
  cluster.server()->EndSilentStreams(MonotonicNow() + absl::Seconds(32));
  EXPECT_THAT(stalled->Status().error_message(), StartsWith("[UPLOAD_STALLED]"));
  v1::ControllerMessage message;
  EXPECT_FALSE(unopened->Read(&message));
  EXPECT_THAT(unopened->Finish().error_message(), StartsWith("[SILENT]"));
  rank->Beat();
  cluster.server()->EndSilentStreams(MonotonicNow() + absl::Seconds(302));
  EXPECT_THAT(rank->Status().error_message(), StartsWith("[SILENT]"));
}

// The stream that owns it may live on for a moment, when the service and its budget are gone.
TEST(Cluster, AnEndedSessionHoldsNoBytesOfItsUpload) {
  TestCluster cluster;
  const auto job = TestRegistration(1);
  ASSERT_TRUE(cluster.manager()->registrar().Register(job).ok());
  auto budget = std::make_unique<controller::UploadBudget>(16);
  controller::RankSession session(cluster.manager(), controller::ThisProcess(), {}, budget.get());
  controller::RankSession::Reply reply;
  v1::WorkerMessage open;
  open.mutable_open()->set_job_id(job.job_id());
  ASSERT_TRUE(session.Handle(open, {}, &reply).ok());
  const auto directive = cluster.manager()->sessions().DirectiveFor(session.id());
  ASSERT_TRUE(directive.has_value() && directive->has_snapshot());
  const auto messages = MessagesOf(SnapshotUpload(1, directive->snapshot(), 0, 5), /*chunk=*/8);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(session.Handle(messages[i], {}, &reply).ok());
  EXPECT_TRUE(reply.results.empty());
  EXPECT_FALSE(budget->Take(8, 0));
  session.End();
  EXPECT_TRUE(budget->Take(8, 0));
  budget.reset();
}

TEST(Cluster, ObserveModeDecidesAndChangesNothing) {
  TestCluster cluster(FallsThenStays);
  auto job = TestRegistration(1);
  job.set_mode(v1::MODE_OBSERVE);
  auto rank = cluster.Rank(job, 0);
  rank->Connect();
  EXPECT_FALSE(TrainUntilPlan(*rank, 1'000).has_value());
  const v1::JobSummary summary = cluster.Summary(job.job_id());
  EXPECT_GT(summary.decided_prefix(), 0);
  EXPECT_EQ(summary.applied_prefix(), 0);
  EXPECT_EQ(summary.plan_id(), 0);
  // In act mode, what it decided becomes a plan.
  ASSERT_TRUE(cluster.manager()->operators().SetMode(JobId(job.job_id()), v1::MODE_ACT).ok());
  const v1::Directive directive = rank->BeatUntil([](const v1::Directive& d) { return d.plans_size() == 1; });
  EXPECT_EQ(directive.plans(0).frozen_prefix(), summary.decided_prefix());
}

TEST(Cluster, AControllerThatRestartsGoesOnWithTheSameStateAndPlans) {
  TestCluster cluster(FallsThenStays);
  const auto job = TestRegistration(1);
  auto rank = cluster.Rank(job, 0);
  rank->Connect();
  ASSERT_TRUE(TrainUntilPlan(*rank, 1'000).has_value());
  rank->BeatAt(rank->heartbeat.step() + 5);
  const std::string before = cluster.manager()->DebugString(JobId(job.job_id()));
  cluster.Restart();
  EXPECT_EQ(cluster.manager()->DebugString(JobId(job.job_id())), before);
  EXPECT_EQ(rank->Status().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(rank->Open()) << "the graphs are not in the journal";
  EXPECT_THAT(rank->Status().error_message(), StartsWith("[UNKNOWN_JOB]"));
  rank->Connect();
  // It has not been acknowledged yet.
  const v1::Directive directive = rank->BeatUntil([](const v1::Directive& d) { return d.plans_size() == 1; });
  EXPECT_EQ(directive.plans(0).plan_id(), 1);
  rank->heartbeat.set_plan_watermark(1);
  rank->heartbeat.set_frozen_prefix(1);
  const auto next = TrainUntilPlan(*rank, rank->heartbeat.step() + 1'000);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->plan_id(), 2);
  EXPECT_EQ(next->frozen_prefix(), 2);
}

TEST(Cluster, ARestartedJobContinuesFromItsCheckpoint) {
  TestCluster cluster(FallsThenStays);
  auto job = TestRegistration(1);
  auto rank = cluster.Rank(job, 0);
  rank->Connect();
  ASSERT_TRUE(TrainUntilPlan(*rank, 1'000).has_value());
  rank->Cut();
  // The checkpoint is older than the plan.
  job.set_generation(1);
  job.set_step(20);
  auto again = cluster.Rank(job, 0, 99);
  v1::RegisterJobResponse response;
  ASSERT_TRUE(again->Register(&response).ok());
  EXPECT_EQ(response.frozen_prefix(), 0);
  EXPECT_EQ(response.plan_id(), 0);
  ASSERT_TRUE(again->Open());
  again->heartbeat.set_step(20);
  const auto plan = TrainUntilPlan(*again, 1'000);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->plan_id(), 1);
  EXPECT_EQ(plan->generation(), 1);
}

TEST(Cluster, AModuleWithoutAGraphIsReportedAndNeverSampled) {
  TestCluster cluster;
  auto job = TestRegistration(1);
  job.mutable_modules(0)->clear_graph();
  job.mutable_modules(0)->set_graph_error("the tracer gave up");
  auto rank = cluster.Rank(job, 0);
  v1::RegisterJobResponse response;
  ASSERT_TRUE(rank->Register(&response).ok());
  ASSERT_EQ(response.module_errors_size(), 1);
  EXPECT_THAT(response.module_errors(0).reason(), HasSubstr("the tracer gave up"));
  ASSERT_TRUE(rank->Open());
  const v1::Directive directive = rank->BeatAt(10);
  EXPECT_FALSE(directive.has_sampling());
  EXPECT_FALSE(directive.has_snapshot());
  EXPECT_THAT(cluster.Summary(job.job_id()).blocked(), HasSubstr("module 0"));
}

TEST(Cluster, AReaderThatDoesNotReadDelaysNobody) {
  TestCluster cluster(FallsThenStays);
  const auto job = TestRegistration(1);
  auto deaf = cluster.Rank(job, 1);
  deaf->Connect();
  auto rank = cluster.Rank(job, 0);
  rank->Connect();
  // Far more answers than flow control lets through unread.
  v1::WorkerMessage beat;
  beat.mutable_heartbeat();
  for (int i = 0; i < 5'000; ++i) ASSERT_TRUE(deaf->Send(beat));
  EXPECT_TRUE(TrainUntilPlan(*rank, 1'000).has_value());
}

TEST(Cluster, AnOperatorOverrulesThePolicyThroughTheAdminService) {
  TestCluster cluster;
  const auto job = TestRegistration(1);
  auto rank = cluster.Rank(job, 0);
  rank->Connect();
  auto admin = cluster.Admin();
  {
    grpc::ClientContext context;
    v1::SetFrozenPrefixRequest request;
    v1::SetFrozenPrefixResponse response;
    request.set_job_id(job.job_id());
    request.set_frozen_prefix(2);
    request.set_reason("to see");
    ASSERT_TRUE(admin->SetFrozenPrefix(&context, request, &response).ok());
    EXPECT_EQ(response.plan_id(), 1);
  }
  const auto pushed = rank->ReadDirective([](const v1::Directive& d) { return d.plans_size() > 0; });
  ASSERT_TRUE(pushed.has_value());
  EXPECT_EQ(pushed->plans(0).frozen_prefix(), 2);
  EXPECT_EQ(pushed->plans(0).reason(), "to see");
  {
    grpc::ClientContext context;
    v1::ExportJobRequest request;
    request.set_job_id(job.job_id());
    auto reader = admin->ExportJob(&context, request);
    std::vector<v1::ExportRecord> records(1);
    while (reader->Read(&records.back())) records.emplace_back();
    EXPECT_TRUE(reader->Finish().ok());
    records.pop_back();
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[0].header().modules_size(), 3);
    EXPECT_EQ(records[1].decision().origin(), v1::DECISION_ORIGIN_OPERATOR);
  }
}

TEST(Cluster, AdminCallsNameTheirErrors) {
  TestCluster cluster;
  auto job = TestRegistration(1);
  job.set_mode(v1::MODE_OBSERVE);
  auto rank = cluster.Rank(job, 0);
  rank->Connect();
  auto admin = cluster.Admin();
  auto set_prefix = [&](const std::string& id, int prefix) {
    grpc::ClientContext context;
    v1::SetFrozenPrefixRequest request;
    v1::SetFrozenPrefixResponse response;
    request.set_job_id(id);
    request.set_frozen_prefix(prefix);
    return admin->SetFrozenPrefix(&context, request, &response).error_message();
  };
  EXPECT_THAT(set_prefix(TestJobId(9), 1), StartsWith("[UNKNOWN_JOB]"));
  EXPECT_THAT(set_prefix(job.job_id(), 3), StartsWith("[BAD_PREFIX]"));
  EXPECT_THAT(set_prefix(job.job_id(), -1), StartsWith("[BAD_PREFIX]"));
  EXPECT_THAT(set_prefix(job.job_id(), 1), StartsWith("[OBSERVE_MODE]"));
  grpc::ClientContext context;
  v1::SetModeRequest request;
  v1::SetModeResponse response;
  request.set_job_id(job.job_id());
  EXPECT_THAT(admin->SetMode(&context, request, &response).error_message(), StartsWith("[BAD_MODE]"));
}

TEST(Cluster, TheHealthServiceSaysServing) {
  TestCluster cluster;
  // The stubs of the health service are not installed; an empty request has no bytes, and the answer's one
  // field, number 1, is SERVING, 1.
  grpc::GenericStub stub(cluster.Channel());
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const grpc::ByteBuffer request(nullptr, 0);
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  ASSERT_TRUE(status.ok()) << status.error_message();
  grpc::Slice bytes;
  ASSERT_TRUE(response.DumpToSingleSlice(&bytes).ok());
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), std::string("\x08\x01"));
}

}  // namespace
}  // namespace egeria::testing

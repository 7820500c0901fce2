#include "worker/session/session.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "ATen/CPUGeneratorImpl.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_agent.h"
#include "tests/support/ranks.h"
#include "tests/support/toy_model.h"
#include "tests/worker/session/toy_rank.h"
#include "worker/commit/parameter_checksum.h"
#include "worker/freeze/gradient_reducer.h"

namespace egeria::worker {
namespace {

using ::egeria::testing::BitEqual;
using ::egeria::testing::FakeLine;
using ::egeria::testing::GlooGroup;
using ::egeria::testing::RunRanks;
using Rank = ::egeria::testing::ToyRank;

constexpr int kModules = Rank::kModules;

Plan PlanNumber(int64_t id, int prefix) { return {PlanId(id), Generation(0), prefix, "test"}; }

SamplingRequest Sampling(int module, int interval, int batch, int64_t version = 1, int first = -1) {
  return {ModuleIndex(module), ModuleIndex(first < 0 ? module : first), interval, batch, version};
}

void Deliver(const Plan& plan, FakeLine* line) { EXPECT_TRUE(line->Deliver(plan).ok()); }

GroupMember Alone() { return {nullptr, 0, 1}; }

TEST(Session, SamplingChangesNothingInTraining) {
  auto train = [](bool sampling) {
    FakeLine line(Generation(0), PlanId(0), kModules);
    Rank rank(Alone(), &line);
    at::manual_seed(17);  // for dropout
    if (sampling) line.Want(Sampling(1, 1, 4));
    rank.Steps(10);
    if (sampling) line.Want(Sampling(2, 3, 8, 2, 0));
    rank.Steps(20);
    EXPECT_EQ(line.samples().empty(), !sampling);
    std::vector<at::Tensor> state = rank.State();
    state.push_back(at::detail::getDefaultCPUGenerator().get_state());
    return state;
  };
  EXPECT_TRUE(BitEqual(train(true), train(false)));
}

TEST(Session, SamplesAreOfTheRequestedModuleStepAndSize) {
  FakeLine line(Generation(0), PlanId(0), kModules);
  Rank rank(Alone(), &line);
  line.Want(Sampling(1, 4, 6, /*version=*/9));
  rank.Steps(9);
  const std::vector<Sample> samples = line.samples();
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].step, 4);
  EXPECT_EQ(samples[1].step, 8);
  EXPECT_EQ(samples[1].module, ModuleIndex(1));
  EXPECT_EQ(samples[1].request_version, 9);
  ASSERT_EQ(samples[1].tensors.size(), 2u);
  EXPECT_EQ(samples[1].tensors[0].spec.shape, (std::vector<int64_t>{6, 4, 6, 6}));
  EXPECT_EQ(samples[1].metric, ActivationMetric::kSpLoss);
  EXPECT_EQ(samples[1].tensors[1].spec.shape, (std::vector<int64_t>{6, 6}));
}

TEST(Session, TheGramMatrixIsOfTheModuleInEvalModeOnTheSentInput) {
  FakeLine line(Generation(0), PlanId(0), kModules);
  Rank rank(Alone(), &line);
  line.Want(Sampling(2, 1, 4, 1, /*first=*/1));
  rank.Step();
  const Sample sample = line.samples().at(0);
  at::NoGradGuard no_gradients;
  const at::Tensor input = at::from_blob(const_cast<std::byte*>(sample.tensors[0].data()), {4, 4, 6, 6}).clone();
  for (const LayerModule& module : rank.model().modules) module.SetTraining(false);
  const at::Tensor rows = rank.model().modules[2].Run(rank.model().modules[1].Run(input)).flatten(1);
  const at::Tensor gram = at::from_blob(const_cast<std::byte*>(sample.tensors[1].data()), {4, 4});
  EXPECT_TRUE(at::equal(gram, at::mm(rows, rows.t())));
}

TEST(Session, IgnoresRequestsThatCannotBeAnswered) {
  FakeLine line(Generation(0), PlanId(0), kModules);
  Rank rank(Alone(), &line);
  ASSERT_TRUE(line.Deliver(PlanNumber(1, 2)).ok());
  rank.Step();
  for (const SamplingRequest& request :
       {Sampling(1, 1, 4), Sampling(99, 1, 4), Sampling(-3, 1, 4), Sampling(2, 0, 4), Sampling(2, 1, 1),
        Sampling(2, 1, 4, 1, 3), Sampling(2, 1, 9)}) {  // frozen, unknown, no interval, b of one, empty, too few
    line.Want(request);
    rank.Step();
  }
  EXPECT_TRUE(line.samples().empty());
  line.Want(Sampling(2, 1, 8));
  rank.Step();
  EXPECT_EQ(line.samples().size(), 1u);
}

TEST(Session, AnswersASnapshotRequestOnceWithTheWeightsOfThatStep) {
  FakeLine line(Generation(0), PlanId(0), kModules);
  Rank rank(Alone(), &line);
  line.Want(SnapshotRequest{ModuleIndex(1), ModuleIndex(0), 5});
  rank.Step();
  const at::Tensor then = rank.model().modules[1].parameters()[0].tensor.detach().clone();
  rank.Steps(3);
  const std::vector<Snapshot> snapshots = line.snapshots();
  ASSERT_EQ(snapshots.size(), 2u);
  EXPECT_EQ(snapshots[0].module, ModuleIndex(0));
  EXPECT_EQ(snapshots[1].module, ModuleIndex(1));
  EXPECT_EQ(snapshots[1].version, 5);
  EXPECT_EQ(snapshots[1].step, 1);
  EXPECT_EQ(snapshots[1].tensors[0].spec.name, "block1.conv.weight");
  EXPECT_EQ(std::memcmp(snapshots[1].tensors[0].data(), then.const_data_ptr(), then.nbytes()), 0);
  line.Want(SnapshotRequest{ModuleIndex(2), ModuleIndex(2), 6});
  rank.Step();
  EXPECT_EQ(line.snapshots().size(), 3u);
}

TEST(Session, TriesASnapshotAgainThatFoundNoRoom) {
  FakeLine line(Generation(0), PlanId(0), kModules);
  Rank rank(Alone(), &line);
  line.TakeUploads(false);
  line.Want(SnapshotRequest{ModuleIndex(1), ModuleIndex(1), 1});
  rank.Steps(10);
  EXPECT_EQ(line.refused(), 1) << "not at every step";
  line.TakeUploads(true);
  rank.Steps(10);
  EXPECT_EQ(line.snapshots().size(), 1u);
}

TEST(Session, SendsASnapshotAgainThatWasLostWithItsStream) {
  FakeLine line(Generation(0), PlanId(0), kModules);
  Rank rank(Alone(), &line);
  line.Want(SnapshotRequest{ModuleIndex(1), ModuleIndex(1), 3});
  rank.Steps(2);
  EXPECT_EQ(line.snapshots().size(), 1u);
  line.LoseSnapshots();
  rank.Steps(20);
  EXPECT_EQ(line.snapshots().size(), 2u);
  line.Want(SnapshotRequest{ModuleIndex(2), ModuleIndex(2), 1});  // a controller that lost its count starts anew
  rank.Step();
  EXPECT_EQ(line.snapshots().size(), 3u);
}

TEST(Session, ReportsEveryStepWithItsLossAndWhatIsFrozen) {
  FakeLine line(Generation(0), PlanId(0), kModules);
  Rank rank(Alone(), &line);
  rank.Step();
  ASSERT_TRUE(line.Deliver(PlanNumber(1, 1)).ok());
  rank.Steps(2);
  const std::vector<StepReport> reports = line.reports();
  ASSERT_EQ(reports.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(reports[i].step, i + 1);
    ASSERT_TRUE(reports[i].loss.has_value());
    EXPECT_TRUE(std::isfinite(*reports[i].loss) && *reports[i].loss > 0);
  }
  EXPECT_EQ(reports[0].frozen_prefix, 0);
  EXPECT_EQ(reports[1].frozen_prefix, 1);
  EXPECT_EQ(reports[1].applied_plan, PlanId(1));
}

TEST(Session, ReportsHowManyModulesNoOptimizerChanges) {
  FakeLine line(Generation(0), PlanId(0), kModules);
  Rank rank(Alone(), &line);
  rank.Step();
  const testing::ToyBatch batch = Rank::Batch(1, 0);
  rank.session().BeginStep();
  const at::Tensor loss = at::cross_entropy_loss(rank.session().Forward(batch.images), batch.labels);
  EXPECT_TRUE(rank.session().EndStep(loss, {0, 0.05}, /*zero_lr_prefix=*/2).ok());
  ASSERT_EQ(line.reports().size(), 2u);
  EXPECT_EQ(line.reports()[0].zero_lr_prefix, 0);
  EXPECT_EQ(line.reports()[1].zero_lr_prefix, 2);
  EXPECT_EQ(line.reports()[1].learning_rates, (std::vector<double>{0, 0.05}));
}

TEST(Session, TwoRanksApplyPlansAtTheSameStepAndStayIdentical) {
  std::vector<Switch> switches[2];
  RunRanks(2, [&](const GroupMember& member) {
    FakeLine line(Generation(0), PlanId(0), kModules);
    Rank rank(member, &line);
    for (int step = 1; step <= 40; ++step) {
      // The plans reach rank 1 three steps later than rank 0, the second one before the first.
      const int late = 3 * member.rank;
      if (step == 5 + late + member.rank) Deliver(PlanNumber(1, 2), &line);
      if (step == 5 + late) Deliver(PlanNumber(2, 3), &line);
      if (step == 20 + late) Deliver(PlanNumber(3, 0), &line);
      rank.Step();
    }
    EXPECT_TRUE(*rank.session().RanksIdentical());
    EXPECT_TRUE(rank.session().Stop(true).ok());
    EXPECT_EQ(line.stopped(), true);
    switches[member.rank] = rank.session().switches();
  });
  ASSERT_EQ(switches[0].size(), 2u);
  ASSERT_EQ(switches[1].size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(switches[0][i].step, switches[1][i].step);
    EXPECT_EQ(switches[0][i].frozen_prefix, switches[1][i].frozen_prefix);
    EXPECT_TRUE(switches[0][i].ranks_identical);
    EXPECT_TRUE(switches[1][i].ranks_identical);
  }
  EXPECT_EQ(switches[0][0].plan, PlanId(2)) << "the newest that both have, in one go";
  EXPECT_EQ(switches[0][0].step, 10);
  EXPECT_TRUE(switches[0][1].unfreeze);
}

TEST(Session, NobodyFreezesWhileOneRankLacksThePlan) {
  RunRanks(2, [](const GroupMember& member) {
    FakeLine line(Generation(0), PlanId(0), kModules);
    Rank rank(member, &line);
    if (member.rank == 0) Deliver(PlanNumber(1, 2), &line);
    rank.Steps(15);
    EXPECT_TRUE(rank.session().switches().empty());
    if (member.rank == 1) Deliver(PlanNumber(1, 2), &line);
    rank.Steps(2);
    ASSERT_EQ(rank.session().switches().size(), 1u);
    EXPECT_EQ(rank.session().switches()[0].step, 17);
    EXPECT_TRUE(rank.session().Stop(true).ok());
  });
}

TEST(Session, ARunUnderAControllerEqualsOneHandedTheSamePlans) {
  std::vector<at::Tensor> controlled[2], handed[2];
  std::vector<PlanSchedule::Entry> entries;
  RunRanks(2, [&](const GroupMember& member) {
    FakeLine line(Generation(0), PlanId(0), kModules);
    Rank rank(member, &line, {.dropout = 0});
    line.Want(Sampling(1, 2, 4));
    for (int step = 1; step <= 30; ++step) {
      if (step == 4) Deliver(PlanNumber(1, 2), &line);
      if (step == 14) Deliver(PlanNumber(2, 0), &line);
      if (step == 22) Deliver(PlanNumber(3, 1), &line);
      rank.Step();
    }
    controlled[member.rank] = rank.State();
    if (member.rank == 0) {
      for (const Switch& s : rank.session().switches()) entries.push_back({s.step, s.frozen_prefix});
    }
    EXPECT_TRUE(rank.session().Stop(true).ok());
  });
  ASSERT_EQ(entries.size(), 3u);
  RunRanks(2, [&](const GroupMember& member) {
    Rank rank(member, nullptr, {.plans = *PlanSchedule::Make(entries, kModules), .dropout = 0});
    rank.Steps(30);
    handed[member.rank] = rank.State();
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(BitEqual(controlled[rank], handed[rank]));
}

TEST(Session, WithAControllerThatNeverSpeaksTrainingIsAsWithoutOne) {
  std::vector<at::Tensor> with[2], without[2];
  RunRanks(2, [&](const GroupMember& member) {
    FakeLine line(Generation(0), PlanId(0), kModules);
    Rank rank(member, &line, {.dropout = 0});
    rank.Steps(20);
    with[member.rank] = rank.State();
    EXPECT_TRUE(rank.session().Stop(true).ok());
  });
  RunRanks(2, [&](const GroupMember& member) {
    Rank rank(member, nullptr, {.dropout = 0});
    rank.Steps(20);
    without[member.rank] = rank.State();
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(BitEqual(with[rank], without[rank]));
}

// Changes a weight of the last module, which never freezes, on rank 1 alone.
void ComeApart(const GroupMember& member, Rank* rank) {
  if (member.rank == 0) return;
  at::NoGradGuard no_gradients;
  rank->model().modules.back().parameters()[0].tensor.mul_(1.001);
}

TEST(Session, NothingFreezesWhereTheRanksDifferBeforeTheFirstSwitch) {
  RunRanks(2, [](const GroupMember& member) {
    FakeLine line(Generation(0), PlanId(0), kModules);
    Rank rank(member, &line);
    rank.Step();
    ComeApart(member, &rank);
    Deliver(PlanNumber(1, 1), &line);
    rank.Steps(9);
    EXPECT_TRUE(rank.session().switches().empty());
    EXPECT_EQ(rank.session().totals().checksum_mismatches, 0);
    EXPECT_TRUE(rank.session().Stop(true).ok());
  });
}

TEST(Session, RanksThatComeApartAfterASwitchAreStopped) {
  RunRanks(2, [](const GroupMember& member) {
    FakeLine line(Generation(0), PlanId(0), kModules);
    Rank rank(member, &line);
    Deliver(PlanNumber(1, 1), &line);
    rank.Steps(9);
    ASSERT_EQ(rank.session().switches().size(), 1u);
    ComeApart(member, &rank);
    Deliver(PlanNumber(2, 0), &line);
    absl::Status status;
    for (int step = 0; status.ok() && step < 9; ++step) status = rank.TryStep();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("[RANKS_DIFFER]"));
    EXPECT_FALSE(rank.session().switches().back().ranks_identical);
    EXPECT_EQ(rank.session().totals().checksum_mismatches, 1);
    EXPECT_TRUE(rank.session().Stop(false).ok());
  });
}

TEST(Session, RanksThatComeApartGoOnWithWhatRankZeroHasIfTheyMay) {
  RunRanks(2, [](const GroupMember& member) {
    FakeLine line(Generation(0), PlanId(0), kModules);
    Rank* running = nullptr;
    const ProcessGroupPtr group = GlooGroup(member, "resync");
    Rank rank(member, &line, {.dropout = 0, .resync = [&] {
                                std::vector<at::Tensor> tensors;
                                for (const LayerModule& module : running->model().modules) {
                                  for (const auto& parameter : module.parameters()) tensors.push_back(parameter.tensor);
                                }
                                at::NoGradGuard no_gradients;
                                BroadcastFromRankZero(group, tensors);
                                return absl::OkStatus();
                              }});
    running = &rank;
    Deliver(PlanNumber(1, 1), &line);
    rank.Steps(9);
    ComeApart(member, &rank);
    Deliver(PlanNumber(2, 0), &line);
    rank.Steps(9);
    EXPECT_EQ(rank.session().switches().size(), 2u);
    EXPECT_TRUE(*rank.session().RanksIdentical());
    EXPECT_TRUE(rank.session().Stop(true).ok());
  });
}

// Cannot be put into evaluation mode, so that what has it cannot freeze.
struct Stubborn : torch::nn::Module {
  void train(bool on) override {
    if (!on) throw std::runtime_error("it stays in training");
  }
};

TEST(Session, ASwitchThatFailsOnOneRankHappensOnNoneAndTheTrainingGoesOn) {
  std::vector<at::Tensor> failed[2], plain[2];
  RunRanks(2, [&](const GroupMember& member) {
    FakeLine line(Generation(0), PlanId(0), 100);
    Rank rank(member, &line, {.dropout = 0});
    if (member.rank == 1) rank.model().modules[1].blocks()[0]->register_module("act", std::make_shared<Stubborn>());
    rank.Steps(3);
    Deliver(PlanNumber(1, 2), &line);
    rank.Steps(9);                     // the ranks exchange their watermarks every eight steps
    Deliver(PlanNumber(2, 1), &line);  // nothing freezes any more
    rank.Steps(8);
    EXPECT_TRUE(rank.session().switches().empty());
    EXPECT_EQ(rank.session().totals().switches_undone, 1);
    EXPECT_EQ(rank.session().totals().frozen_prefix, 0);
    EXPECT_EQ(rank.session().totals().freezes, 0);
    EXPECT_EQ(line.reports().back().frozen_prefix, 0);
    EXPECT_TRUE(*rank.session().RanksIdentical());
    failed[member.rank] = rank.State();
    EXPECT_TRUE(rank.session().Stop(true).ok());
  });
  RunRanks(2, [&](const GroupMember& member) {
    Rank rank(member, nullptr, {.dropout = 0});
    rank.Steps(20);
    plain[member.rank] = rank.State();
  });
  // Buffers of active modules are the ranks' own between steps; an attempt to switch shares rank 0's, as a step does.
  EXPECT_TRUE(BitEqual(failed[0], plain[0]));
  EXPECT_TRUE(BitEqual(failed[1], plain[1]));
}

TEST(Session, AnUnfreezeThatFailsHalfWayOnOneRankLeavesBothFrozen) {
  RunRanks(2, [](const GroupMember& member) {
    FakeLine line(Generation(0), PlanId(0), kModules);
    Rank rank(member, &line, {.dropout = 0, .on_unfreeze = [&member](const std::vector<at::Tensor>&) {
                                if (member.rank == 1) throw std::runtime_error("momentum cannot be reset");
                              }});
    Deliver(PlanNumber(1, 2), &line);
    rank.Steps(4);
    ASSERT_EQ(rank.session().switches().size(), 1u);
    const std::vector<at::Tensor> frozen = rank.model().State(0, 2);
    Deliver(PlanNumber(2, 0), &line);
    rank.Steps(8);
    EXPECT_EQ(rank.session().switches().size(), 1u);
    EXPECT_EQ(rank.session().totals().frozen_prefix, 2);
    EXPECT_EQ(rank.session().totals().switches_undone, 1);
    EXPECT_TRUE(BitEqual(rank.model().State(0, 2), frozen));
    EXPECT_TRUE(*rank.session().RanksIdentical());
    EXPECT_TRUE(rank.session().Stop(true).ok());
  });
}

TEST(PlanSchedule, RefusesStepsThatDoNotRiseAndPrefixesOutOfRange) {
  EXPECT_TRUE(PlanSchedule::Make({{1, 1}, {5, 0}}, 3).ok());
  EXPECT_FALSE(PlanSchedule::Make({{5, 1}, {5, 0}}, 3).ok());
  EXPECT_FALSE(PlanSchedule::Make({{0, 1}}, 3).ok());
  EXPECT_FALSE(PlanSchedule::Make({{1, 3}}, 3).ok());
  EXPECT_FALSE(PlanSchedule::Make({{1, -1}}, 3).ok());
}

TEST(PlanSchedule, SpeaksAtItsStepsOnly) {
  const PlanSchedule plans = *PlanSchedule::Make({{3, 1}, {7, 0}}, 3);
  EXPECT_EQ(plans.At(2), std::nullopt);
  EXPECT_EQ(plans.At(3), 1);
  EXPECT_EQ(plans.At(5), std::nullopt);
  EXPECT_EQ(plans.At(7), 0);
  EXPECT_EQ(plans.At(8), std::nullopt);
}

}  // namespace
}  // namespace egeria::worker

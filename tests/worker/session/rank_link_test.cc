#include "worker/session/rank_link.h"

#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <map>
#include <utility>

#include "ATen/ops/ones.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_agent.h"
#include "tests/support/ranks.h"
#include "worker/session/request_agreement.h"

namespace egeria::worker {
namespace {

using ::egeria::testing::FakeAgent;
using ::egeria::testing::FakeLine;
using ::egeria::testing::GlooGroup;
using ::egeria::testing::RunRanks;

constexpr int kLinkModules = 4;

SamplingRequest SamplingOf(int module, int interval, int64_t version) {
  return {ModuleIndex(module), ModuleIndex(module), interval, 4, version};
}

SnapshotRequest SnapshotOf(int module, int64_t version) { return {ModuleIndex(module), ModuleIndex(module), version}; }

GradientRequest GradientsOf(int first_module, int interval, int64_t version) {
  return {ModuleIndex(first_module), interval, version};
}

// One rank without a model: steps through its link and notes what it is told to do.
class LinkRank {
 public:
  explicit LinkRank(const GroupMember& member, WaitLimits limits = {}, PlanId applied = PlanId(0),
                    int64_t total_steps = 0)
      : line(Generation(0), applied, kLinkModules),
        link_(Parts(member, &line, std::move(limits), applied, total_steps)) {}

  void Step() {
    ++step_;
    if (const auto sampling = link_.SamplingFor(step_)) {
      sampled[step_] = sampling->version;
      link_.Offer(SampleOf(*sampling, step_), {{"input", at::ones({4, 3})}, {"compared", at::ones({4, 4})}});
    }
    link_.Poll();
    if (const auto wanted = link_.SnapshotWanted(step_)) {
      snapshots[step_] = wanted->version;
      for (ModuleIndex module = wanted->first_module; module <= wanted->module; module = module.next()) {
        link_.Offer(Snapshot{module, step_, wanted->version}, {{"weight", at::ones({2})}});
      }
    }
    const absl::StatusOr<std::optional<Plan>> plan = link_.Commit(step_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (plan.ok() && plan->has_value()) plans[step_] = (*plan)->frozen_prefix;
    link_.Report(step_, at::ones({}), {0.1}, plans.empty() ? 0 : plans.rbegin()->second);
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }
  RankLink& link() { return link_; }

  FakeLine line;
  std::map<int64_t, int64_t> sampled, snapshots;  // step -> version
  std::map<int64_t, int> plans;                   // step -> frozen prefix

 private:
  static RankLinkParts Parts(const GroupMember& member, FakeLine* line, WaitLimits limits, PlanId applied,
                             int64_t total_steps) {
    RankLinkParts parts;
    parts.total_steps = total_steps;
    parts.applied_plan = applied;
    parts.agent = std::make_unique<FakeAgent>(line);
    if (member.world_size > 1) parts.commit_group = GlooGroup(member, "commit");
    parts.module_count = kLinkModules;
    parts.limits = std::move(limits);
    return parts;
  }

  RankLink link_;
  int64_t step_ = 0;
};

TEST(RankLink, AllRanksSampleAtTheSameStepsWhatOneIsAskedAndThatOneSends) {
  std::map<int64_t, int64_t> sampled[2];
  RunRanks(2, [&](const GroupMember& member) {
    LinkRank rank(member);
    for (int step = 1; step <= 60; ++step) {
      if (step == 3 && member.rank == 0) rank.line.Want(SamplingOf(1, 2, 100));
      if (step == 20 && member.rank == 0) rank.line.Want(SamplingOf(2, 3, 200));
      if (step == 40 && member.rank == 0) rank.line.Want(std::optional<SamplingRequest>());
      rank.Step();
    }
    EXPECT_TRUE(rank.link().Stop(true).ok());
    sampled[member.rank] = rank.sampled;
    EXPECT_EQ(rank.line.samples().empty(), member.rank == 1);
    for (const Sample& sample : rank.line.samples()) {
      EXPECT_EQ(sample.step % (sample.request_version == 100 ? 2 : 3), 0);
      EXPECT_EQ(sample.module, ModuleIndex(sample.request_version == 100 ? 1 : 2));
    }
  });
  EXPECT_EQ(sampled[0], sampled[1]);
  EXPECT_EQ(sampled[0].begin()->first, 12) << "asked in step 3, advertised after step 9, agreed on after 11";
  EXPECT_EQ(sampled[0].rbegin()->second, 200);
  EXPECT_LE(sampled[0].rbegin()->first, 42);
}

TEST(RankLink, AllRanksAnswerASnapshotRequestAtTheSameStepOnceAndTheAskedOneSends) {
  std::map<int64_t, int64_t> snapshots[3];
  RunRanks(3, [&](const GroupMember& member) {
    LinkRank rank(member);
    for (int step = 1; step <= 60; ++step) {
      if (step == 5 && member.rank == 1) rank.line.Want(SnapshotOf(1, 7));
      if (step == 30 && member.rank == 1) rank.line.LoseSnapshots();
      rank.Step();
    }
    EXPECT_TRUE(rank.link().Stop(true).ok());
    snapshots[member.rank] = rank.snapshots;
    EXPECT_EQ(rank.line.snapshots().size(), member.rank == 1 ? 2u : 0u);
  });
  EXPECT_EQ(snapshots[0], snapshots[1]);
  EXPECT_EQ(snapshots[0], snapshots[2]);
  EXPECT_EQ(snapshots[0].size(), 2u) << "once, and once more after it was lost";
}

TEST(RankLink, ARankThatIsCutOffWithAnOlderRequestDoesNotStandInTheWay) {
  std::map<int64_t, int64_t> sampled[2];
  RunRanks(2, [&](const GroupMember& member) {
    LinkRank rank(member);
    if (member.rank == 0) rank.line.Want(SamplingOf(1, 2, 100));
    rank.Steps(10);
    if (member.rank == 1) rank.line.Want(SamplingOf(2, 5, 200));  // rank 0 still holds the old one
    rank.Steps(20);
    EXPECT_TRUE(rank.link().Stop(true).ok());
    sampled[member.rank] = rank.sampled;
    if (member.rank == 1) {
      ASSERT_FALSE(rank.line.samples().empty());
      EXPECT_EQ(rank.line.samples().back().module, ModuleIndex(2));
    }
  });
  EXPECT_EQ(sampled[0], sampled[1]);
  EXPECT_EQ(sampled[0].rbegin()->second, 200);
}

TEST(RankLink, ReadingsComeFromTheAskedRankOnly) {
  RunRanks(2, [](const GroupMember& member) {
    LinkRank rank(member);
    if (member.rank == 1) rank.line.Want(SamplingOf(1, 1, 100));
    rank.Steps(4);
    const auto sampling = rank.link().SamplingFor(5);
    ASSERT_TRUE(sampling.has_value());
    EXPECT_EQ(rank.link().Offer(Reading{sampling->module, 5, sampling->version, 0.25}), member.rank == 1);
    rank.Step();
    EXPECT_TRUE(rank.link().Stop(true).ok());
    ASSERT_EQ(rank.line.readings().size(), member.rank == 1 ? 1u : 0u);
    if (member.rank == 1) {
      EXPECT_EQ(rank.line.readings()[0].step, 5);
      EXPECT_EQ(rank.line.readings()[0].request_version, 100);
      EXPECT_EQ(rank.line.readings()[0].plasticity, 0.25);
    }
  });
}

// In the tests below, rank r knows this of step s: module i has squares 10 i + r + s and, of the mean, i + s, and
// progress i - r.
GradientReading SquaresOf(const GradientRequest& request, int rank, int64_t step) {
  GradientReading squares{
      .first_module = request.first_module, .step = step, .request_version = request.version, .samples = 8};
  for (int module = static_cast<int>(request.first_module.value()); module < kLinkModules; ++module) {
    squares.mean_of_squares.push_back(static_cast<double>(10 * module + rank + step));
    squares.square_of_mean.push_back(static_cast<double>(module + step));
    squares.progress.push_back(static_cast<double>(module - rank));
  }
  return squares;
}

TEST(RankLink, OneReadingOfGradientsIsMadeOfWhatAllRanksKnow) {
  RunRanks(2, [](const GroupMember& member) {
    LinkRank rank(member);
    if (member.rank == 1) rank.line.Want(GradientsOf(1, 1, 5));
    for (int64_t step = 1; step <= 20; ++step) {
      const auto request = rank.link().GradientsFor(step);
      EXPECT_EQ(request.has_value(), step > 3) << "on both ranks, two boundaries after it was heard of";
      if (request.has_value()) {
        EXPECT_TRUE(rank.link().Offer(SquaresOf(*request, member.rank, step)));
      }
      rank.Step();
    }
    EXPECT_TRUE(rank.link().Stop(true).ok());
    const std::vector<GradientReading> readings = rank.line.gradient_readings();
    ASSERT_EQ(readings.size(), member.rank == 1 ? 15u : 0u) << "the last two are on their way";
    for (size_t i = 0; i < readings.size(); ++i) {
      const GradientReading& reading = readings[i];
      const double step = static_cast<double>(reading.step);
      EXPECT_EQ(reading.step, static_cast<int64_t>(i) + 4);
      EXPECT_EQ(reading.request_version, 5);
      EXPECT_EQ(reading.first_module, ModuleIndex(1));
      EXPECT_EQ(reading.parts, 2);
      EXPECT_EQ(reading.samples, 16);
      EXPECT_THAT(reading.mean_of_squares, ::testing::ElementsAre(10.5 + step, 20.5 + step, 30.5 + step));
      EXPECT_THAT(reading.square_of_mean, ::testing::ElementsAre(1 + step, 2 + step, 3 + step));
      EXPECT_THAT(reading.progress, ::testing::ElementsAre(0.5, 1.5, 2.5)) << "the mean over the ranks";
    }
  });
}

TEST(RankLink, ARankWithoutGradientsHoldsNobodyUpAndThenThereIsNoReading) {
  RunRanks(3, [](const GroupMember& member) {
    LinkRank rank(member);
    if (member.rank == 0) rank.line.Want(GradientsOf(0, 2, 5));
    for (int64_t step = 1; step <= 20; ++step) {
      const auto request = rank.link().GradientsFor(step);
      const bool silent = member.rank == 2 && step == 10;
      if (request.has_value() && !silent) {
        rank.link().Offer(SquaresOf(*request, member.rank, step));
      }
      rank.Step();
    }
    EXPECT_TRUE(rank.link().Stop(true).ok());
    std::vector<int64_t> steps;
    for (const GradientReading& reading : rank.line.gradient_readings()) steps.push_back(reading.step);
    if (member.rank == 0) {
      EXPECT_THAT(steps, ::testing::ElementsAre(4, 6, 8, 12, 14, 16, 18));
    } else {
      EXPECT_TRUE(steps.empty());
    }
  });
}

TEST(RankLink, ProgressIsLeftOutUnlessAllRanksKnowIt) {
  RunRanks(2, [](const GroupMember& member) {
    LinkRank rank(member);
    if (member.rank == 0) rank.line.Want(GradientsOf(0, 1, 5));
    for (int64_t step = 1; step <= 10; ++step) {
      if (const auto request = rank.link().GradientsFor(step)) {
        GradientReading squares = SquaresOf(*request, member.rank, step);
        if (member.rank == 1) squares.progress.clear();
        EXPECT_TRUE(rank.link().Offer(squares));
        squares.progress = {1};
        EXPECT_FALSE(rank.link().Offer(squares)) << "of one module only";
      }
      rank.Step();
    }
    EXPECT_TRUE(rank.link().Stop(true).ok());
    const std::vector<GradientReading> readings = rank.line.gradient_readings();
    EXPECT_EQ(readings.empty(), member.rank != 0);
    for (const GradientReading& reading : readings) EXPECT_TRUE(reading.progress.empty());
  });
}

TEST(RankLink, RanksThatDisagreeOnTheMeanGradientTellNothing) {
  RunRanks(2, [](const GroupMember& member) {
    LinkRank rank(member);
    if (member.rank == 0) rank.line.Want(GradientsOf(0, 1, 5));
    for (int64_t step = 1; step <= 10; ++step) {
      if (const auto request = rank.link().GradientsFor(step)) {
        GradientReading squares = SquaresOf(*request, member.rank, step);
        squares.square_of_mean[2] += member.rank;  // nobody has averaged them
        rank.link().Offer(squares);
      }
      rank.Step();
    }
    EXPECT_TRUE(rank.link().Stop(true).ok());
    EXPECT_TRUE(rank.line.gradient_readings().empty());
  });
}

TEST(RankLink, RanksThatAreNotAtTheSameStepDoNotMistakeOneCollectiveForAnother) {
  RunRanks(2, [](const GroupMember& member) {
    LinkRank rank(member);
    if (member.rank == 0) rank.line.Want(GradientsOf(0, 2, 5));
    rank.Steps(6);
    // Rank 1 has skipped a step, so that the request is due at different boundaries from here on.
    for (int64_t step = 7 + member.rank; step < 14; ++step) {
      const auto plan = rank.link().Commit(step);
      if (plan.ok()) continue;
      EXPECT_EQ(std::string(plan.status().message()).rfind("[STEPS_DIFFER]", 0), 0u) << plan.status();
    }
    if (member.rank == 1) rank.link().Commit(14).IgnoreError();
    EXPECT_TRUE(rank.link().Stop(true).ok());
  });
}

TEST(RankLink, AloneARankTellsOfItsPartsAtOnce) {
  LinkRank rank({nullptr, 0, 1});
  rank.line.Want(GradientsOf(2, 3, 4));
  EXPECT_FALSE(rank.link().GradientsFor(4).has_value());
  const auto request = rank.link().GradientsFor(6);
  ASSERT_TRUE(request.has_value());
  GradientReading squares = SquaresOf(*request, 0, 6);
  squares.parts = 2;
  EXPECT_TRUE(rank.link().Offer(squares));
  ASSERT_EQ(rank.line.gradient_readings().size(), 1u);
  EXPECT_EQ(rank.line.gradient_readings()[0].parts, 2);
  EXPECT_EQ(rank.line.gradient_readings()[0].samples, 8);
  squares.square_of_mean[0] = std::numeric_limits<double>::infinity();
  squares.step = 9;
  rank.link().Offer(squares);
  EXPECT_EQ(rank.line.gradient_readings().size(), 1u) << "a step that was skipped tells nothing";
  squares = SquaresOf(GradientsOf(0, 3, 4), 0, 9);
  squares.first_module = request->first_module;
  EXPECT_FALSE(rank.link().Offer(squares)) << "of too many modules";
}

TEST(RankLink, NobodySamplesAModuleThatAPlanHasFrozen) {
  RunRanks(2, [](const GroupMember& member) {
    LinkRank rank(member);
    if (member.rank == 0) rank.line.Want(SamplingOf(1, 1, 100));
    rank.Steps(6);
    EXPECT_FALSE(rank.sampled.empty());
    EXPECT_TRUE(rank.line.Deliver({PlanId(1), Generation(0), 2, ""}).ok());
    rank.Steps(4);
    EXPECT_EQ(rank.plans.size(), 1u);
    rank.sampled.clear();
    rank.Steps(5);
    EXPECT_TRUE(rank.sampled.empty());
    EXPECT_TRUE(rank.link().Stop(true).ok());
  });
}

TEST(RankLink, NothingFreezesWithTheLastStepUnlessTrainingGoesOn) {
  for (const int64_t total : {0, 5, 6}) {
    LinkRank rank({}, {}, PlanId(0), total);
    rank.Steps(4);
    EXPECT_TRUE(rank.line.Deliver({PlanId(1), Generation(0), 2, ""}).ok());
    rank.Steps(1);
    EXPECT_EQ(rank.plans.empty(), total == 5) << total;
    EXPECT_EQ(rank.link().totals().frozen_prefix, total == 5 ? 0 : 2);
    EXPECT_EQ(rank.link().applied_plan(), PlanId(1)) << "it has been dealt with";
    rank.Steps(1);
    EXPECT_EQ(rank.plans, (std::map<int64_t, int>{{total == 5 ? 6 : 5, 2}})) << "the total was too small";
    EXPECT_EQ(rank.link().totals().frozen_prefix, 2);
    EXPECT_TRUE(rank.link().Stop(true).ok());
  }
}

TEST(RankLink, RanksThatHaveNothingToTellEachOtherDoNotMeetAtEveryStep) {
  std::map<int64_t, int> plans[2];
  RunRanks(2, [&](const GroupMember& member) {
    const ProcessGroupPtr signals = GlooGroup(member, "signals");
    LinkRank rank(member);
    rank.Steps(10);  // the ranks advertise what they have after steps 1 and 9
    if (member.rank == 0) {
      EXPECT_TRUE(rank.line.Deliver({PlanId(1), Generation(0), 2, ""}).ok());
      rank.Steps(7);  // without rank 1, until both have advertised what they have after step 17
    }
    signals->barrier()->wait();
    if (member.rank == 1) rank.Steps(7);
    rank.Steps(3);
    EXPECT_TRUE(rank.plans.empty()) << "rank 1 has no plan yet";
    if (member.rank == 1) {
      EXPECT_TRUE(rank.line.Deliver({PlanId(1), Generation(0), 2, ""}).ok());
    }
    rank.Steps(2);  // rank 0 waits for its plan to reach the others, so they meet at every step
    EXPECT_TRUE(rank.link().Stop(true).ok());
    plans[member.rank] = rank.plans;
  });
  EXPECT_EQ(plans[0], plans[1]);
  EXPECT_EQ(plans[0], (std::map<int64_t, int>{{22, 2}}));
}

TEST(RankLink, RanksThatHaveAppliedOtherPlansMeetAtTheSameBoundaries) {
  RunRanks(2, [](const GroupMember& member) {
    LinkRank rank(member, {}, PlanId(member.rank == 0 ? 5 : 0));
    rank.Steps(20);  // a rank that did not meet the others here would take their collectives for those of training
    GlooGroup(member, "training")->barrier()->wait();
    EXPECT_TRUE(rank.plans.empty());
    EXPECT_TRUE(rank.link().Stop(true).ok());
  });
}

TEST(RankLink, RanksThatAreNotAtTheSameStepApplyNothing) {
  RunRanks(2, [](const GroupMember& member) {
    LinkRank rank(member);
    RankLink& link = rank.link();
    EXPECT_TRUE(rank.line.Deliver({PlanId(1), Generation(0), 2, ""}).ok());
    EXPECT_TRUE(link.Commit(member.rank == 0 ? 1 : 2).ok());
    for (int step = 3; step < 6; ++step) {
      const auto plan = link.Commit(step);
      EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition) << plan.status();
      EXPECT_EQ(std::string(plan.status().message()).rfind("[STEPS_DIFFER]", 0), 0u);
    }
    EXPECT_EQ(link.applied_plan(), PlanId(0));
    EXPECT_TRUE(link.Stop(true).ok());
  });
}

TEST(RankLink, WhatIsNotOneNumberIsNoLoss) {
  LinkRank rank({nullptr, 0, 1});
  rank.link().Report(1, at::ones({2}), {0.5}, 0);
  rank.link().Report(2, at::ones({0}), {0.5}, 0);
  rank.link().Report(3, at::ones({1, 1}), {0.5}, 0);
  ASSERT_EQ(rank.line.reports().size(), 3u);
  EXPECT_FALSE(rank.line.reports()[0].loss.has_value());
  EXPECT_FALSE(rank.line.reports()[1].loss.has_value());
  EXPECT_EQ(rank.line.reports()[2].loss, 1.0f);
}

TEST(RankLink, AScheduleTakesThePlaceOfAController) {
  RankLinkParts parts;
  parts.plans = *PlanSchedule::Make({{2, 1}, {4, 0}}, kLinkModules);
  parts.module_count = kLinkModules;
  RankLink link(std::move(parts));
  EXPECT_FALSE(link.Commit(1)->has_value());
  EXPECT_EQ((*link.Commit(2))->frozen_prefix, 1);
  EXPECT_FALSE(link.SamplingFor(3).has_value());
  EXPECT_EQ((*link.Commit(4))->frozen_prefix, 0);
  link.Report(4, at::Tensor(), {}, 0);
  EXPECT_EQ(link.totals().steps, 4);
}

TEST(RankLink, AReportWithoutALossIsAReport) {
  LinkRank rank({nullptr, 0, 1});
  rank.link().Report(1, at::Tensor(), {0.5}, 0);
  ASSERT_EQ(rank.line.reports().size(), 1u);
  EXPECT_FALSE(rank.line.reports()[0].loss.has_value());
}

TEST(RankLink, AnInterruptEndsTheWaitAndTheStepCanBeRepeated) {
  RunRanks(2, [](const GroupMember& member) {
    const ProcessGroupPtr signals = GlooGroup(member, "signals");
    bool interrupt = member.rank == 0;
    LinkRank rank(member, {[&interrupt] { return std::exchange(interrupt, false); }});
    if (member.rank == 0) {
      EXPECT_TRUE(rank.link().Commit(1).ok());
      EXPECT_TRUE(absl::IsCancelled(rank.link().Commit(2).status()));
    }
    signals->barrier()->wait();  // rank 1 comes to its first step boundary only after the interrupt
    if (member.rank == 1) {
      EXPECT_TRUE(rank.link().Commit(1).ok());
    }
    EXPECT_TRUE(rank.link().Commit(2).ok());
    EXPECT_TRUE(rank.link().Stop(true).ok());
  });
}

TEST(RankLink, StopDoesNotWaitForARankThatNeverComes) {
  RunRanks(2, [](const GroupMember& member) {
    const ProcessGroupPtr done = GlooGroup(member, "done");
    FakeLine line(Generation(0), PlanId(0), kLinkModules);
    RankLinkParts parts;
    parts.agent = std::make_unique<FakeAgent>(&line);
    parts.commit_group = GlooGroup(member, "commit");
    parts.module_count = kLinkModules;
    RankLink link(std::move(parts));
    if (member.rank == 0) {
      EXPECT_TRUE(link.Commit(1).ok());
      EXPECT_TRUE(absl::IsDeadlineExceeded(link.Stop(false, std::chrono::milliseconds(50))));
      EXPECT_EQ(line.stopped(), false) << "the agent is stopped all the same";
    }
    done->barrier()->wait();
  });
}

TEST(RankLink, DoesNothingInAForkedChild) {
  LinkRank rank({nullptr, 0, 1});
  rank.line.Want(SamplingOf(1, 1, 1));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    RankLink& link = rank.link();
    const bool nothing = !link.SamplingFor(1).has_value() && !link.SnapshotWanted(1).has_value() &&
                         !link.Commit(1)->has_value() && link.Stop(true).ok() && !link.has_controller();
    _exit(nothing && !rank.line.stopped().has_value() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(rank.link().SamplingFor(1).has_value());
}

TEST(RequestAgreement, KeepsAHostileVersionOut) {
  RequestAgreement agreement;
  const std::vector<int64_t> none = agreement.Advertise(std::nullopt, std::nullopt, std::nullopt);
  EXPECT_EQ(agreement.Advertise(SamplingOf(1, 1, INT64_MIN), SnapshotOf(1, -5), GradientsOf(1, 1, -9)), none);
}

}  // namespace
}  // namespace egeria::worker

#include "controller/job/job_state.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/job/facts.h"

namespace egeria::controller {
namespace {

using storage::v1::Fact;
using ::testing::HasSubstr;

// Applies facts, and after each observation the decisions that it causes, as the manager does.
class Driver {
 public:
  explicit Driver(const Fact& registration) { Apply(registration); }

  void Apply(const Fact& fact) {
    const absl::Status applied = state.Apply(fact);
    ASSERT_TRUE(applied.ok()) << applied << fact.DebugString();
    journal.push_back(fact);
    while (!state.pending_decisions().empty() && official) {
      const Fact decided =
          state.FactFor(state.pending_decisions().front(), v1::DECISION_ORIGIN_POLICY, absl::UnixEpoch());
      ASSERT_TRUE(state.Apply(decided).ok());
      journal.push_back(decided);
    }
  }
  // Readings of the frontmost module, every 10 steps, until something is decided.
  void ReadUntilDecided() {
    const size_t before = state.decisions().size() + state.pending_decisions().size();
    for (int i = 0; i < 100 && state.decisions().size() + state.pending_decisions().size() == before; ++i) {
      const int64_t step = state.last_step() + 10;
      Apply(ReadingFact(step, state.decided_prefix(), 0.001 + 0.01 * std::exp(-0.1 * ++reading)));
    }
  }
  std::string Replayed() const {
    JobState replayed;
    for (const Fact& fact : journal) EXPECT_TRUE(replayed.Apply(fact).ok());
    return replayed.DebugString();
  }

  JobState state;
  std::vector<Fact> journal;
  bool official = true;  // make decisions facts at once
  int reading = 0;
};

absl::Status Check(const JobState& state, const Fact& fact) { return state.Check({&fact, 1}).status(); }

Fact Decided(int64_t step, int prefix, v1::DecisionOrigin origin, int64_t plan) {
  Fact fact;
  fact.mutable_decided()->set_step(step);
  fact.mutable_decided()->set_action("freeze");
  fact.mutable_decided()->set_frozen_prefix(prefix);
  fact.mutable_decided()->set_origin(origin);
  fact.mutable_decided()->set_plan_id(plan);
  return fact;
}

TEST(JobState, TakesNothingBeforeItsRegistration) {
  JobState state;
  EXPECT_EQ(state.Apply(ReadingFact(1, 0, 0.1)).code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(state.registered());
}

TEST(JobState, IsRegisteredOnce) {
  Driver job(RegisteredFact(1));
  const std::string before = job.state.DebugString();
  EXPECT_EQ(job.state.Apply(RegisteredFact(1)).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(job.state.DebugString(), before);
}

TEST(JobState, MakesPlansOfThePolicysDecisions) {
  Driver job(RegisteredFact(1));
  job.ReadUntilDecided();
  EXPECT_EQ(job.state.newest_plan(), PlanId(1));
  EXPECT_EQ(job.state.planned_prefix(), 1);
  job.ReadUntilDecided();
  EXPECT_EQ(job.state.newest_plan(), PlanId(2));
  EXPECT_EQ(job.state.planned_prefix(), 2);
  ASSERT_EQ(job.state.PlansAbove(PlanId(0), 64).size(), 2u);
  ASSERT_EQ(job.state.PlansAbove(PlanId(1), 64).size(), 1u);
  EXPECT_EQ(job.state.PlansAbove(PlanId(1), 64)[0].plan_id(), 2);
  EXPECT_EQ(job.state.PlansAbove(PlanId(0), 1).size(), 1u);
  EXPECT_TRUE(job.state.PlansAbove(PlanId(7), 64).empty());
  EXPECT_EQ(job.Replayed(), job.state.DebugString());
}

TEST(JobState, DecidesAgainWhatACrashKeptFromTheJournal) {
  Driver job(RegisteredFact(1));
  job.official = false;
  job.ReadUntilDecided();
  ASSERT_EQ(job.state.pending_decisions().size(), 1u);
  EXPECT_EQ(job.state.newest_plan(), PlanId(0));
  JobState recovered;
  for (const Fact& fact : job.journal) ASSERT_TRUE(recovered.Apply(fact).ok());
  ASSERT_EQ(recovered.pending_decisions().size(), 1u);
  EXPECT_EQ(recovered.pending_decisions().front().reason, job.state.pending_decisions().front().reason);
}

TEST(JobState, RefusesPlansWithGapsAndImpossiblePrefixes) {
  Driver job(RegisteredFact(1));
  for (const Fact& fact :
       {Decided(1, 1, v1::DECISION_ORIGIN_OPERATOR, 2),  // a gap
        Decided(1, 1, v1::DECISION_ORIGIN_OPERATOR, 0),  // no plan in act mode
        Decided(1, 3, v1::DECISION_ORIGIN_OPERATOR, 1),  // the last module
        Decided(1, -1, v1::DECISION_ORIGIN_OPERATOR, 1), Decided(1, 1, v1::DECISION_ORIGIN_WORKER, 1)}) {
    EXPECT_EQ(job.state.Apply(fact).code(), absl::StatusCode::kInternal) << fact.DebugString();
  }
  EXPECT_EQ(job.Replayed(), job.state.DebugString());
}

TEST(JobState, RefusesObservationsThatGoBackOrAreNotFinite) {
  Driver job(RegisteredFact(1));
  job.Apply(ReadingFact(20, 0, 0.1));
  EXPECT_FALSE(job.state.Apply(ReadingFact(10, 0, 0.1)).ok());
  EXPECT_FALSE(job.state.Apply(ReadingFact(30, 0, std::nan(""))).ok());
  EXPECT_FALSE(job.state.Apply(ReadingFact(30, 9, 0.1)).ok());
  EXPECT_TRUE(job.state.Apply(ReadingFact(20, 0, 0.1)).ok());
}

TEST(JobState, KeepsFromThePolicyWhatIsObservedWhilePaused) {
  Driver job(RegisteredFact(1)), never_paused(RegisteredFact(1));
  job.Apply(ReadingFact(10, 0, 0.5));
  never_paused.Apply(ReadingFact(10, 0, 0.5));
  job.Apply(PauseFact(true));
  for (int i = 2; i < 40; ++i) job.Apply(ReadingFact(10 * i, 0, 0.001));
  EXPECT_TRUE(job.state.decisions().empty());
  EXPECT_EQ(job.state.policy().status().modules[0].readings, never_paused.state.policy().status().modules[0].readings);
  int exported = 0;
  JobState::HistoryPlace place;
  while (job.state.VisitHistory(&place, [&](const v1::ExportRecord&) { ++exported; })) {
  }
  EXPECT_EQ(exported, 1) << "the export is what the policy saw";
  job.Apply(PauseFact(false));
  job.ReadUntilDecided();
  EXPECT_EQ(job.state.planned_prefix(), 1);
  EXPECT_EQ(job.Replayed(), job.state.DebugString());
}

TEST(JobState, AnOperatorsPrefixGivesThePolicyAFreshHistory) {
  Driver job(RegisteredFact(1));
  job.Apply(ReadingFact(10, 0, 0.5));
  const int64_t epoch = job.state.epoch();
  job.Apply(Decided(15, 2, v1::DECISION_ORIGIN_OPERATOR, 1));
  EXPECT_EQ(job.state.decided_prefix(), 2);
  EXPECT_EQ(job.state.planned_prefix(), 2);
  EXPECT_GT(job.state.epoch(), epoch);
  EXPECT_FALSE(job.state.Apply(ReadingFact(14, 2, 0.1)).ok()) << "before the operator's decision";
}

TEST(JobState, InObserveModeDecidesWithoutPlans) {
  v1::RegisterJobRequest request = RegisteredFact(1).registered().request();
  request.set_mode(v1::MODE_OBSERVE);
  Fact registered;
  *registered.mutable_registered()->mutable_request() = request;
  Driver job(registered);
  job.ReadUntilDecided();
  EXPECT_EQ(job.state.decided_prefix(), 1);
  EXPECT_EQ(job.state.planned_prefix(), 0);
  EXPECT_EQ(job.state.decisions().back().plan_id(), 0);
  EXPECT_FALSE(job.state.Apply(Decided(job.state.last_step(), 2, v1::DECISION_ORIGIN_OPERATOR, 0)).ok());
  Fact act;
  act.mutable_mode_changed()->set_mode(v1::MODE_ACT);
  job.Apply(act);
  EXPECT_EQ(job.state.planned_prefix(), 1) << "what it decided has become a plan";
  EXPECT_EQ(job.state.newest_plan(), PlanId(1));
  EXPECT_EQ(job.Replayed(), job.state.DebugString());
}

TEST(JobState, ARestartForgetsWhatWasObservedAfterItsCheckpoint) {
  Driver job(RegisteredFact(1)), fresh(RegisteredFact(1));
  for (int i = 1; i <= 4; ++i) {
    job.Apply(ReadingFact(10 * i, 0, 0.5 / i));
    fresh.Apply(ReadingFact(10 * i, 0, 0.5 / i));
  }
  for (int i = 5; i <= 60; ++i) job.Apply(ReadingFact(10 * i, job.state.decided_prefix(), 0.1));
  ASSERT_GT(job.state.newest_plan().value(), 0);
  job.Apply(GenerationFact(1, 40, 0, 0));
  EXPECT_EQ(job.state.last_step(), 40);
  EXPECT_EQ(job.state.newest_plan(), PlanId(0));
  EXPECT_EQ(job.state.planned_prefix(), 0);
  EXPECT_TRUE(job.state.decisions().empty());
  EXPECT_EQ(job.state.observations(), fresh.state.observations());
  EXPECT_EQ(job.state.policy().status().modules[0].slope, fresh.state.policy().status().modules[0].slope);
  EXPECT_EQ(job.state.policy().status().modules[0].readings, 4);
  job.ReadUntilDecided();
  EXPECT_EQ(job.state.PlansAbove(PlanId(0), 64)[0].generation(), 1);
  EXPECT_EQ(job.Replayed(), job.state.DebugString());
}

TEST(JobState, ARestartAdoptsThePrefixOfTheCheckpoint) {
  Driver job(RegisteredFact(1));
  job.ReadUntilDecided();
  const int64_t step = job.state.last_step();
  // The plan was decided before the checkpoint and applied after it.
  job.Apply(GenerationFact(1, step + 5, 0, 0));
  EXPECT_EQ(job.state.decided_prefix(), 0);
  EXPECT_EQ(job.state.decisions().back().origin(), v1::DECISION_ORIGIN_WORKER);
  EXPECT_EQ(job.Replayed(), job.state.DebugString());
  // With the prefix that the policy has anyway nothing is adopted.
  Driver applied(RegisteredFact(1));
  applied.ReadUntilDecided();
  applied.Apply(GenerationFact(1, applied.state.last_step() + 5, 1, 1));
  EXPECT_EQ(applied.state.decisions().size(), 1u);
  EXPECT_EQ(applied.state.newest_plan(), PlanId(1));
  EXPECT_TRUE(applied.state.PlansAbove(PlanId(1), 64).empty());
}

TEST(JobState, PlanIdsGoOnFromTheWorkersWhereTheJournalKnowsLess) {
  v1::RegisterJobRequest request = RegisteredFact(1).registered().request();
  request.set_frozen_prefix(1);
  request.set_applied_plan(7);
  request.set_step(500);
  Fact registered;
  *registered.mutable_registered()->mutable_request() = request;
  Driver job(registered);
  EXPECT_EQ(job.state.newest_plan(), PlanId(7));
  EXPECT_EQ(job.state.decided_prefix(), 1);
  job.ReadUntilDecided();
  EXPECT_EQ(job.state.newest_plan(), PlanId(8));
  EXPECT_FALSE(Check(job.state, GenerationFact(0, 900, 0, 8)).ok()) << "nothing new";
  EXPECT_TRUE(Check(job.state, GenerationFact(0, 900, 0, 9)).ok());
  EXPECT_FALSE(Check(job.state, GenerationFact(-1, 900, 0, 9)).ok());
}

TEST(JobState, AnOlderCheckpointThanTheFirstOneTakesTheJobBackToIt) {
  Fact registered = RegisteredFact(1);
  registered.mutable_registered()->mutable_request()->set_step(1'000);
  Driver job(registered);
  job.Apply(ReadingFact(1'010, 0, 0.5));
  job.Apply(GenerationFact(1, 500, 0, 0));
  EXPECT_EQ(job.state.last_step(), 500);
  job.Apply(ReadingFact(510, 0, 0.5));
  EXPECT_EQ(job.Replayed(), job.state.DebugString());
}

TEST(JobState, WhatHasNoRateIsToldOfAgainWhereTheCheckpointHasItActive) {
  Fact registered = RegisteredFact(1);
  registered.mutable_registered()->mutable_request()->mutable_policy()->mutable_auto_();
  Driver job(registered);
  Fact still;
  still.mutable_observed()->set_step(40);
  still.mutable_observed()->set_zero_lr_prefix(1);
  job.Apply(still);
  EXPECT_EQ(job.state.decided_prefix(), 1);
  job.Apply(GenerationFact(1, 45, 0, 0));
  EXPECT_EQ(job.state.decided_prefix(), 0);
  EXPECT_EQ(job.state.last_zero_lr_prefix(), 0) << "so that the next heartbeat's number is news";
  still.mutable_observed()->set_step(50);
  job.Apply(still);
  EXPECT_EQ(job.state.decided_prefix(), 1);
  // A checkpoint from before the second one: nothing unfreezes meanwhile.
  still.mutable_observed()->set_step(60);
  still.mutable_observed()->set_zero_lr_prefix(2);
  job.Apply(still);
  EXPECT_EQ(job.state.decided_prefix(), 2);
  job.Apply(GenerationFact(2, 65, 1, 1));
  EXPECT_EQ(job.state.decided_prefix(), 1);
  still.mutable_observed()->set_step(70);
  job.Apply(still);
  EXPECT_EQ(job.state.decided_prefix(), 2);
  EXPECT_EQ(job.Replayed(), job.state.DebugString());
}

TEST(JobState, AFinishedJobTakesNoMoreObservationsUntilItRestarts) {
  Driver job(RegisteredFact(1));
  Fact finished;
  finished.mutable_finished()->set_step(100);
  job.Apply(finished);
  EXPECT_TRUE(job.state.finished());
  EXPECT_FALSE(job.state.Apply(ReadingFact(110, 0, 0.1)).ok());
  EXPECT_FALSE(job.state.Apply(finished).ok());
  job.Apply(GenerationFact(1, 100, 0, 0));
  EXPECT_FALSE(job.state.finished());
  job.Apply(ReadingFact(110, 0, 0.1));
}

TEST(JobState, ADecisionOfAnotherVersionStandsAndIsCounted) {
  Driver job(RegisteredFact(1));
  job.Apply(ReadingFact(10, 0, 0.5));
  job.Apply(Decided(10, 1, v1::DECISION_ORIGIN_POLICY, 1));
  EXPECT_EQ(job.state.divergences(), 1);
  EXPECT_EQ(job.state.decided_prefix(), 1);
  EXPECT_EQ(job.state.planned_prefix(), 1);
}

Fact WithBootstrapping(bool losses_reported) {
  Fact fact = RegisteredFact(1);
  v1::RegisterJobRequest* request = fact.mutable_registered()->mutable_request();
  request->mutable_policy()->mutable_plasticity()->set_bootstrap(true);
  request->set_losses_unreported(!losses_reported);
  request->set_step(100);
  return fact;
}

Fact StepFact(int64_t step) {
  Fact fact;
  fact.mutable_observed()->set_step(step);
  return fact;
}

TEST(JobState, WithoutLossesBootstrappingLastsSixIntervalsFromTheJobsStart) {
  Driver job(WithBootstrapping(false));  // n = 10
  job.Apply(StepFact(159));
  EXPECT_TRUE(job.state.policy().status().bootstrapping);
  job.Apply(StepFact(160));
  EXPECT_FALSE(job.state.policy().status().bootstrapping);
  job.ReadUntilDecided();
  EXPECT_EQ(job.state.planned_prefix(), 1);
  EXPECT_EQ(job.Replayed(), job.state.DebugString());
}

TEST(JobState, AGenerationMaySayThatLossesEndButNotThatTheyBegin) {
  Driver job(WithBootstrapping(true));
  job.Apply(StepFact(200));
  EXPECT_TRUE(job.state.policy().wants_loss());
  Fact silent = GenerationFact(1, 200, 0, 0);
  silent.mutable_generation_started()->set_losses_unreported(true);
  job.Apply(silent);
  EXPECT_FALSE(job.state.policy().status().bootstrapping) << "step 200 was seen";
  job.ReadUntilDecided();
  const int prefix = job.state.planned_prefix();
  EXPECT_EQ(prefix, 1);
  job.Apply(GenerationFact(2, job.state.last_step(), prefix, 1));
  EXPECT_FALSE(job.state.policy().wants_loss());
  EXPECT_EQ(job.state.decided_prefix(), prefix) << "what counted without losses counts still";
  EXPECT_EQ(job.state.decisions().back().origin(), v1::DECISION_ORIGIN_POLICY);
  EXPECT_EQ(job.Replayed(), job.state.DebugString());
}

TEST(JobState, SeveralObservationsAreJudgedAsOneFollowsTheOther) {
  Driver job(RegisteredFact(1));
  const std::vector<Fact> rising = {ReadingFact(10, 0, 0.2), ReadingFact(10, 0, 0.1), ReadingFact(20, 0, 0.1)};
  const std::vector<Fact> falling = {ReadingFact(20, 0, 0.2), ReadingFact(10, 0, 0.1)};
  EXPECT_THAT(std::string(job.state.Check(falling).status().message()), HasSubstr("observed step 10 after 20"));
  auto checked = job.state.Check(rising);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(job.state.observations(), 0u) << "a check changes nothing";
  job.state.Apply(*std::move(checked));
  Driver one_by_one(RegisteredFact(1));
  for (const Fact& fact : rising) one_by_one.Apply(fact);
  EXPECT_EQ(job.state.DebugString(), one_by_one.state.DebugString());
}

TEST(JobState, OnlyObservationsComeSeveralAtOnce) {
  Driver job(RegisteredFact(1));
  const std::vector<Fact> mixed = {ReadingFact(10, 0, 0.2), PauseFact(true)};
  EXPECT_THAT(std::string(job.state.Check(mixed).status().message()), HasSubstr("several facts at once"));
}

TEST(JobState, NamesWhatIsImpossible) {
  Driver job(RegisteredFact(1));
  EXPECT_THAT(std::string(Check(job.state, GenerationFact(0, 0, 0, 0)).message()), HasSubstr("generation 0"));
  EXPECT_THAT(std::string(Check(job.state, Fact()).message()), HasSubstr("no kind"));
}

// Whatever facts come, in whatever order: a refused one changes nothing, and the accepted ones replayed give
// the same state to the last digit.
TEST(JobState, ReplayingAnyAcceptedFactsGivesTheSameState) {
  int accepted = 0, refused = 0, decisions = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    JobState state;
    std::vector<Fact> journal;
    for (int i = 0; i < 300; ++i) {
      Fact fact;
      if (state.registered() && !state.pending_decisions().empty() && random() % 4 != 0) {
        fact = state.FactFor(state.pending_decisions().front(), v1::DECISION_ORIGIN_POLICY, absl::UnixEpoch());
      } else {
        fact = RandomFact(state, random);
      }
      const std::string before = state.DebugString();
      if (state.Apply(fact).ok()) {
        journal.push_back(fact);
        ++accepted;
      } else {
        ++refused;
        ASSERT_EQ(state.DebugString(), before) << fact.DebugString();
      }
      if (state.registered()) {
        ASSERT_GE(state.planned_prefix(), 0);
        ASSERT_LT(state.planned_prefix(), state.module_count());
      }
    }
    if (state.registered()) decisions += static_cast<int>(state.decisions().size());
    JobState replayed;
    for (const Fact& fact : journal) ASSERT_TRUE(replayed.Apply(fact).ok());
    ASSERT_EQ(replayed.DebugString(), state.DebugString()) << "seed " << seed;
  }
  EXPECT_GT(accepted, 1'000);
  EXPECT_GT(refused, 1'000);
  EXPECT_GT(decisions, 20);
}

}  // namespace
}  // namespace egeria::controller

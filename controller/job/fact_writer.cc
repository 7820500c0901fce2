#include "controller/job/fact_writer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "controller/job/directives.h"
#include "controller/job/proto_time.h"

namespace egeria::controller {
namespace {

// Where all jobs together have too much, one may go on while it has less than this part of what is allowed to all.
constexpr int64_t kShares = 64;

}  // namespace

using storage::v1::Fact;

absl::StatusOr<std::vector<Journal::Damaged>> FactWriter::Replay(const std::function<Job&(const JobId&)>& job_of) {
  return journal_->Replay([&job_of](const JobId& id, int64_t sequence, const Fact& fact) {
    Job& job = job_of(id);
    job.next_sequence = sequence + 1;
    return job.state.Apply(fact);
  });
}

Fact FactWriter::NewFact() const {
  Fact fact;
  *fact.mutable_time() = TimeToProto(options_->wall_clock());
  return fact;
}

absl::Status FactWriter::Commit(Job& job, std::vector<Fact> facts, bool sync) {
  for (Fact& fact : facts) *fact.mutable_clock() = TimeToProto(options_->clock());
  if (job.state.fact_bytes() > options_->max_bytes_per_job / 4 * 5) {
    return NamedError(absl::StatusCode::kResourceExhausted, "JOB_TOO_LARGE", "the job has ", job.state.fact_bytes(),
                      " bytes in the journal, and at most ", options_->max_bytes_per_job / 4 * 5,
                      " are possible: go on under a new id");
  }
  EGERIA_ASSIGN_OR_RETURN(JobState::Checked checked, job.state.Check(facts));
  if (absl::Status written = journal_->Append(job.id, job.next_sequence, facts, sync); !written.ok()) {
    if (WorthSaying(++refused_)) {
      LogError("job ", job.id.text(), ": ", written.message(), " (", refused_, " times so far)");
    }
    return written;
  }
  job.next_sequence += static_cast<int64_t>(facts.size());
  const size_t decisions = job.state.decisions().size();
  job.state.Apply(std::move(checked));
  // The fact is a decision, or has made the job adopt what its worker has frozen.
  if (job.state.decisions().size() > decisions) job.live.totals.Count(job.state.decisions().back());
  return absl::OkStatus();
}

absl::Status FactWriter::CommitPendingDecisions(Job& job, Effects& effects) {
  while (!job.state.pending_decisions().empty()) {
    const Fact fact =
        job.state.FactFor(job.state.pending_decisions().front(), v1::DECISION_ORIGIN_POLICY, options_->wall_clock());
    EGERIA_RETURN_IF_ERROR(Commit(job, fact));
    const v1::Decision& decision = fact.decided();
    LogInfo("job ", job.id.text(), ": step ", decision.step(), ": ", decision.action(), " to prefix ",
            decision.frozen_prefix(),
            decision.plan_id() == 0 ? " (observed only)" : absl::StrCat(", plan ", decision.plan_id()), ": ",
            decision.reason());
    job.live.ranks.PushDirectives(effects);
  }
  return absl::OkStatus();
}

bool FactWriter::IsFull(const Job& job, size_t observations) const {
  const int64_t count = static_cast<int64_t>(job.state.observations() + observations);
  const int64_t bytes = job.state.fact_bytes();
  return count > options_->max_observations_per_job || bytes > options_->max_bytes_per_job ||
         (bytes_of_all_ > options_->max_bytes && bytes > options_->max_bytes / kShares);
}

absl::Status FactWriter::CommitObservations(Job& job, const std::vector<v1::Observation>& observations,
                                            Effects& effects) {
  // A decision that the journal refused earlier comes first.
  EGERIA_RETURN_IF_ERROR(CommitPendingDecisions(job, effects));
  if (observations.empty()) return absl::OkStatus();
  if (IsFull(job, observations.size())) {
    if (!std::exchange(job.live.observations_full, true)) {
      LogWarning("job ", job.id.text(), " has reached its limit of observations, with ", job.state.observations(),
                 " in ", job.state.fact_bytes(), " bytes: its policy sees no more of them and decides nothing more");
    }
    return absl::OkStatus();
  }
  std::vector<Fact> facts;
  facts.reserve(observations.size());
  for (const v1::Observation& observation : observations) {
    facts.push_back(NewFact());
    *facts.back().mutable_observed() = observation;
  }
  EGERIA_RETURN_IF_ERROR(Commit(job, std::move(facts), /*sync=*/false));
  const absl::Status decided = CommitPendingDecisions(job, effects);
  RefreshRequests(job, *options_, effects);
  return decided;
}

absl::Status FactWriter::CommitMeasured(Job& job, int64_t step, v1::Observation observation, Effects& effects) {
  observation.set_step(std::max(step, job.state.last_step()));
  const std::optional<double> told = job.live.filter.learning_rate();
  if (const auto rate = told ? told : job.state.last_learning_rate()) observation.set_learning_rate(*rate);
  const absl::Status committed = CommitObservations(job, {std::move(observation)}, effects);
  if (committed.ok()) return committed;
  LogWarning("job ", job.id.text(), ": a reading is lost: ", committed.message());
  return NamedError(absl::StatusCode::kUnavailable, "JOURNAL", "the reading could not be recorded");
}

absl::Status FactWriter::CommitReading(Job& job, int module, int64_t step, double plasticity, Effects& effects) {
  v1::Observation observation;
  observation.set_module(module);
  observation.set_plasticity(plasticity);
  const bool refresh = job.live.requests.ReadingTaken(options_->clock());
  const absl::Status committed = CommitMeasured(job, step, std::move(observation), effects);
  if (refresh) job.live.ranks.PushDirectives(effects);
  if (committed.ok()) ++job.live.totals.readings;
  return committed;
}

}  // namespace egeria::controller

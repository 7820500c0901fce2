#include "controller/job/job_manager.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/graph/graph_proto.h"
#include "common/policy/planned_saving.h"
#include "common/policy/policy_proto.h"
#include "controller/job/job.h"
#include "controller/job/proto_time.h"
#include "controller/job/registration.h"

namespace egeria::controller {
namespace {

// A plan that comes to this part of a budget does it, but for the steps between two looks.
constexpr double kMaxOfABudget = 0.95;

using storage::v1::Fact;

const char* OriginName(v1::DecisionOrigin origin) {
  switch (origin) {
    case v1::DECISION_ORIGIN_OPERATOR: return "operator";
    case v1::DECISION_ORIGIN_WORKER: return "checkpoint";
    default: return "policy";
  }
}

Fact FactAt(absl::Time time) {
  Fact fact;
  *fact.mutable_time() = TimeToProto(time);
  return fact;
}

void AddCounters(const v1::Counters& from, v1::Counters* to) {
  to->set_samples_sent(to->samples_sent() + from.samples_sent());
  to->set_samples_dropped(to->samples_dropped() + from.samples_dropped());
  to->set_snapshots_sent(to->snapshots_sent() + from.snapshots_sent());
  to->set_reconnects(to->reconnects() + from.reconnects());
}

// All ranks commit the same plans, so that the furthest one's count is the job's.
int64_t CommitsOf(const std::vector<v1::Counters>& ranks) {
  int64_t commits = 0;
  for (const v1::Counters& counters : ranks) commits = std::max(commits, counters.commits());
  return commits;
}

// A policy that waits for what it measures plans nothing, and may yet do it.
void SayIfBudgetIsOutOfReach(const v1::RegisterJobRequest& registration) {
  if (registration.budget() <= 0) return;
  const absl::StatusOr<double> saving =
      policy::PlannedSaving(policy::FromProto(registration.policy()), policy::ShapeOf(registration));
  if (!saving.ok() || *saving <= 0 || *saving > kMaxOfABudget * registration.budget()) return;
  LogWarning(
      "job ", registration.job_id(), ": a budget of ",
      absl::StrFormat(
          "%.3g %% is out of reach: this policy plans to save "
          "%.3g %% of the time at most; for more, give it other constants (docs/policies.md) or take another one",
          100 * registration.budget(), 100 * *saving));
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobManager>> JobManager::Start(JobManagerOptions options,
                                                              std::unique_ptr<Journal> journal,
                                                              const EvaluatorFactory& make_evaluator) {
  std::unique_ptr<JobManager> manager(new JobManager(std::move(options), std::move(journal)));
  EGERIA_RETURN_IF_ERROR(manager->Recover());
  EGERIA_ASSIGN_OR_RETURN(manager->evaluator_,
                          make_evaluator([self = manager.get()](const reference::Evaluator::Result& result) {
                            self->OnEvaluation(result);
                          }));
  return manager;
}

JobManager::JobManager(JobManagerOptions options, std::unique_ptr<Journal> journal)
    : options_(std::move(options)), journal_(std::move(journal)) {}

JobManager::~JobManager() { Stop(); }

void JobManager::Stop() {
  {
    Effects effects;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    for (auto& [id, job] : jobs_) {
      DismissRanks(*job, absl::UnavailableError("the controller is going down"), effects);
    }
  }
  if (evaluator_ != nullptr) evaluator_->Stop();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (absl::Status synced = journal_->Sync(); !synced.ok()) LogError("stopping: ", synced.ToString());
}

absl::Status JobManager::Recover() {
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto quarantined = journal_->Replay([this](const JobId& id, int64_t sequence, const Fact& fact) {
    std::unique_ptr<Job>& job = jobs_[id];
    if (job == nullptr) {
      job = std::make_unique<Job>();
      job->id = id;
    }
    job->next_sequence = sequence + 1;
    return job->state.Apply(fact);
  });
  if (!quarantined.ok()) return quarantined.status();
  for (const Journal::Quarantined& job : *quarantined) {
    LogError("job ", job.job.text(), " is quarantined: ", job.reason, "; its ", job.records,
             " records are kept aside and its workers will register it anew");
    jobs_.erase(job.job);
  }
  quarantined_jobs_ = static_cast<int64_t>(quarantined->size());
  for (auto& [id, job] : jobs_) {
    job->last_activity = job->state.last_fact_time();
    job->totals.readings = job->state.readings();
    for (const v1::Decision& decision : job->state.decisions()) {
      ++job->totals.decisions[{decision.action(), OriginName(decision.origin())}];
    }
    if (job->state.divergences() > 0) {
      LogWarning("job ", id.text(), ": ", job->state.divergences(),
                 " recorded decisions are not those that this version would make; the recorded ones stand");
    }
    EGERIA_RETURN_IF_ERROR(CommitPendingDecisions(*job, effects));
  }
  if (!jobs_.empty()) LogInfo("recovered ", jobs_.size(), " jobs from the journal");
  return absl::OkStatus();
}

// --- Registration ---

absl::StatusOr<v1::RegisterJobResponse> JobManager::RegisterJob(const v1::RegisterJobRequest& request) {
  EGERIA_RETURN_IF_ERROR(ValidateRegistration(request, options_.registration));
  EGERIA_ASSIGN_OR_RETURN(const policy::PolicyConfig policy,
                          policy::Resolve(policy::FromProto(request.policy()), policy::ShapeOf(request)));
  const uint64_t fingerprint = GraphFingerprint(request);
  bool begins = true;  // the job, or a generation of it
  {
    Effects effects;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return absl::UnavailableError("the controller is going down");
    Job* job = nullptr;
    if (auto found = jobs_.find(JobId(request.job_id())); found != jobs_.end()) {
      job = found->second.get();
      begins = request.generation() > job->state.generation().value();
      EGERIA_RETURN_IF_ERROR(RenewJob(*job, request, policy::ToProto(policy), effects));
    } else {
      EGERIA_ASSIGN_OR_RETURN(job, AdmitJob(request, policy::ToProto(policy), effects));
    }
    job->registered_here = true;
    job->last_activity = std::max(job->last_activity, options_.clock());
    if (job->graphs_known) {
      if (job->graph_fingerprint != fingerprint) {
        LogWarning("job ", job->id.text(),
                   ": a rank sent other module graphs than the first one; its own are "
                   "passed over");
      }
      return ResponseFor(*job);
    }
  }
  if (begins) SayIfBudgetIsOutOfReach(request);
  TakeGraphs(request, fingerprint);
  const std::lock_guard<std::mutex> lock(mutex_);
  EGERIA_ASSIGN_OR_RETURN(const Job* job, FindJob(JobId(request.job_id())));
  return ResponseFor(*job);
}

absl::StatusOr<JobManager::Job*> JobManager::AdmitJob(const v1::RegisterJobRequest& request,
                                                      const v1::PolicyConfig& policy, Effects& effects) {
  const auto live =
      std::count_if(jobs_.begin(), jobs_.end(), [](const auto& entry) { return !entry.second->state.finished(); });
  if (live >= options_.max_jobs) {
    return NamedError(absl::StatusCode::kResourceExhausted, "TOO_MANY_JOBS", live,
                      " jobs have not finished, and no more than ", options_.max_jobs, " are allowed");
  }
  Fact fact = FactAt(options_.clock());
  v1::RegisterJobRequest* registered = fact.mutable_registered()->mutable_request();
  *registered = request;
  *registered->mutable_policy() = policy;
  if (request.mode() == v1::MODE_UNSPECIFIED) registered->set_mode(v1::MODE_ACT);
  for (v1::LayerModule& module : *registered->mutable_modules()) module.clear_graph();
  auto job = std::make_unique<Job>();
  job->id = JobId(request.job_id());
  EGERIA_RETURN_IF_ERROR(Commit(*job, {fact}, /*sync=*/true, effects));
  if (!job->state.decisions().empty()) {
    ++job->totals.decisions[{job->state.decisions().back().action(), OriginName(v1::DECISION_ORIGIN_WORKER)}];
  }
  LogInfo("job ", request.job_id(), " ('", request.training_job(), "'): registered, ", request.modules_size(),
          " modules, ", request.world_size(), " ranks, policy ", policy::PolicyName(job->state.policy_config()));
  return (jobs_[job->id] = std::move(job)).get();
}

absl::Status JobManager::RenewJob(Job& job, const v1::RegisterJobRequest& request, const v1::PolicyConfig& policy,
                                  Effects& effects) {
  if (request.generation() < job.state.generation().value()) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "STALE_GENERATION", "generation ",
                      job.state.generation().value(), " of this job has registered; this is ", request.generation());
  }
  EGERIA_RETURN_IF_ERROR(CompareRegistrations(job.state.registration(), request));
  const bool newer = request.generation() > job.state.generation().value();
  if (!newer && request.applied_plan() <= job.state.newest_plan().value()) return absl::OkStatus();
  EGERIA_RETURN_IF_ERROR(CommitPendingDecisions(job, effects));
  Fact fact = FactAt(options_.clock());
  auto* started = fact.mutable_generation_started();
  started->set_generation(request.generation());
  started->set_step(request.step());
  started->set_frozen_prefix(request.frozen_prefix());
  started->set_applied_plan(request.applied_plan());
  started->set_losses_unreported(request.losses_unreported());
  if (newer) {
    const v1::RegisterJobRequest& known = job.state.registration();
    v1::RegisterJobRequest now = WithSettingsOf(known, request);
    *now.mutable_policy() = policy;
    if (now.SerializeAsString() != known.SerializeAsString()) {
      LogInfo("job ", job.id.text(), ": goes on with policy ", policy::PolicyName(policy::FromProto(policy)), ", ",
              now.total_steps(), " steps in all");
      *started->mutable_changed() = WithSettingsOf({}, now);
    }
  }
  const size_t decisions_before = job.state.decisions().size();
  EGERIA_RETURN_IF_ERROR(Commit(job, {fact}, /*sync=*/true, effects));
  LogInfo("job ", job.id.text(), ": generation ", request.generation(), " starts at step ", request.step(),
          " with frozen prefix ", request.frozen_prefix());
  // Only this way round: an operator's observe mode outlives restarts, which say act by default.
  if (newer && request.mode() == v1::MODE_OBSERVE && job.state.mode() == v1::MODE_ACT) {
    Fact mode = FactAt(options_.clock());
    mode.mutable_mode_changed()->set_mode(v1::MODE_OBSERVE);
    EGERIA_RETURN_IF_ERROR(Commit(job, {mode}, /*sync=*/true, effects));
  }
  if (job.state.decisions().size() > decisions_before &&
      job.state.decisions().back().origin() == v1::DECISION_ORIGIN_WORKER) {
    ++job.totals.decisions[{job.state.decisions().back().action(), OriginName(v1::DECISION_ORIGIN_WORKER)}];
  }
  if (newer) {
    DismissRanks(job,
                 NamedError(absl::StatusCode::kFailedPrecondition, "STALE_GENERATION",
                            "a newer generation of this job has registered"),
                 effects);
    job.graphs_known = false;
    job.blocked.clear();
  }
  job.filter.Reset();
  RefreshRequests(job, effects);
  return absl::OkStatus();
}

void JobManager::TakeGraphs(const v1::RegisterJobRequest& request, uint64_t fingerprint) {
  std::vector<std::optional<graph::ModuleGraph>> graphs;
  std::vector<absl::Status> form;
  std::vector<bool> local;
  for (const v1::LayerModule& module : request.modules()) {
    graphs.emplace_back();
    form.emplace_back();
    local.push_back(module.local_reference());
    if (module.local_reference()) continue;
    if (!module.has_graph()) {
      const std::string& why = module.graph_error();
      form.back() = NamedError(absl::StatusCode::kFailedPrecondition, "NO_GRAPH",
                               why.empty() ? "the worker sent none" : why.substr(0, 1'024));
      continue;
    }
    auto converted = graph::FromProto(module.graph());
    if (converted.ok()) {
      graphs.back() = *std::move(converted);
    } else {
      form.back() = converted.status();
    }
  }
  const JobId id(request.job_id());
  reference::JobTraits traits;
  traits.shares_cpu = SharesCores(request);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    // Of any other policy readings are a second opinion, which may come when it can.
    const policy::PlasticityConfig* rule = policy::RuleOf(found->second->state.policy_config());
    if (rule != nullptr) traits.deadline_steps = rule->interval_steps;
  }
  std::vector<absl::Status> accepted = evaluator_->SetJob(id, graphs, traits);
  accepted.resize(graphs.size());
  for (size_t i = 0; i < form.size(); ++i) {
    if (!form[i].ok()) accepted[i] = form[i];
    if (local[i]) accepted[i] = absl::OkStatus();  // not the evaluator's to judge
  }
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = jobs_.find(id);
  if (found == jobs_.end() || found->second->state.generation().value() != request.generation()) return;
  Job& job = *found->second;
  if (job.graph_version == 0 || job.graph_fingerprint != fingerprint) ++job.graph_version;
  job.graphs_known = true;
  job.graph_fingerprint = fingerprint;
  job.module_status = std::move(accepted);
  job.local_reference = std::move(local);
  RefreshRequests(job, effects);
}

v1::RegisterJobResponse JobManager::ResponseFor(const Job& job) const {
  v1::RegisterJobResponse response;
  *response.mutable_policy() = job.state.registration().policy();
  response.set_plan_id(job.state.newest_plan().value());
  response.set_frozen_prefix(job.state.planned_prefix());
  *response.mutable_heartbeat_interval() = DurationToProto(options_.heartbeat_interval);
  if (policy::RuleOf(job.state.policy_config()) == nullptr) return response;  // modules freeze without a reference
  for (size_t i = 0; i < job.module_status.size(); ++i) {
    if (job.module_status[i].ok()) continue;
    auto* error = response.add_module_errors();
    error->set_module(static_cast<int>(i));
    error->set_reason(std::string(job.module_status[i].message()));
  }
  return response;
}

// --- Facts ---

absl::Status JobManager::Commit(Job& job, const std::vector<Fact>& facts, bool sync, Effects& effects) {
  for (const Fact& fact : facts) EGERIA_RETURN_IF_ERROR(job.state.Check(fact));
  if (absl::Status written = journal_->Append(job.id, job.next_sequence, facts, sync); !written.ok()) {
    if (WorthSaying(++journal_errors_)) {
      LogError("job ", job.id.text(), ": ", written.message(), " (", journal_errors_, " times so far)");
    }
    return written;
  }
  job.next_sequence += static_cast<int64_t>(facts.size());
  for (const Fact& fact : facts) {
    absl::Status applied = job.state.Apply(fact);
    if (applied.ok()) continue;
    effects.Add([this, id = job.id, applied] { Quarantine(id, applied); });
    return applied;
  }
  return absl::OkStatus();
}

absl::Status JobManager::CommitPendingDecisions(Job& job, Effects& effects) {
  while (!job.state.pending_decisions().empty()) {
    const Fact fact =
        job.state.FactFor(job.state.pending_decisions().front(), v1::DECISION_ORIGIN_POLICY, options_.clock());
    EGERIA_RETURN_IF_ERROR(Commit(job, {fact}, /*sync=*/true, effects));
    const v1::Decision& decision = fact.decided();
    ++job.totals.decisions[{decision.action(), OriginName(decision.origin())}];
    LogInfo("job ", job.id.text(), ": step ", decision.step(), ": ", decision.action(), " to prefix ",
            decision.frozen_prefix(),
            decision.plan_id() == 0 ? " (observed only)" : absl::StrCat(", plan ", decision.plan_id()), ": ",
            decision.reason());
    PushDirectives(job, effects);
  }
  return absl::OkStatus();
}

absl::Status JobManager::CommitObservations(Job& job, const std::vector<v1::Observation>& observations,
                                            Effects& effects) {
  // A decision that the journal refused earlier comes first.
  EGERIA_RETURN_IF_ERROR(CommitPendingDecisions(job, effects));
  if (observations.empty()) return absl::OkStatus();
  if (static_cast<int64_t>(job.state.observations() + observations.size()) > options_.max_observations_per_job) {
    if (!std::exchange(job.observations_full, true)) {
      LogWarning("job ", job.id.text(), ": its ", job.state.observations(),
                 " observations are as many as a job may have; no more are taken, and nothing more is decided");
    }
    return absl::OkStatus();
  }
  std::vector<Fact> facts;
  facts.reserve(observations.size());
  for (const v1::Observation& observation : observations) {
    facts.push_back(FactAt(options_.clock()));
    *facts.back().mutable_observed() = observation;
  }
  EGERIA_RETURN_IF_ERROR(Commit(job, facts, /*sync=*/false, effects));
  const absl::Status decided = CommitPendingDecisions(job, effects);
  RefreshRequests(job, effects);
  return decided;
}

void JobManager::OnEvaluation(const reference::Evaluator::Result& result) {
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = jobs_.find(result.job);
  if (stopped_ || found == jobs_.end()) return;
  Job& job = *found->second;
  const int module = static_cast<int>(result.module.value());
  const bool failed = !result.evaluation.ok() || !std::isfinite(result.evaluation->plasticity);
  if (failed) {
    const absl::Status why = result.evaluation.ok() ? NamedError(absl::StatusCode::kInternal, "REFERENCE_FAILED",
                                                                 "the plasticity is not finite")
                                                    : result.evaluation.status();
    ++job.totals.uploads_refused["REFERENCE_FAILED"];
    if (!std::exchange(job.evaluation_failed, true)) {
      LogWarning("job ", job.id.text(), ": module ", module, " could not be evaluated: ", why.message());
    }
    if (auto rank = job.ranks.find(job.Sampler()); rank != job.ranks.end()) {
      effects.Tell(rank->second.listener,
                   [tag = result.tag, why](SessionListener& listener) { listener.OnUploadRefused(tag, why); });
    }
    return;
  }
  job.totals.reference_seconds[result.evaluation->backend] += absl::ToDoubleSeconds(result.evaluation->compute);
  ++job.totals.evaluations[result.evaluation->backend];
  if (job.state.finished() || !job.requests.IsCurrent(module, result.request_version)) return;
  // A loss is logged there, and the worker has nothing that it could send again.
  CommitReading(job, module, result.step, result.evaluation->plasticity, effects).IgnoreError();
}

absl::Status JobManager::CommitMeasured(Job& job, int64_t step, v1::Observation observation, Effects& effects) {
  observation.set_step(std::max(step, job.state.last_step()));
  const std::optional<double> told = job.filter.learning_rate();
  if (const auto rate = told ? told : job.state.last_learning_rate()) observation.set_learning_rate(*rate);
  const absl::Status committed = CommitObservations(job, {std::move(observation)}, effects);
  if (committed.ok()) return committed;
  LogWarning("job ", job.id.text(), ": a reading is lost: ", committed.message());
  return NamedError(absl::StatusCode::kUnavailable, "JOURNAL", "the reading could not be recorded");
}

absl::Status JobManager::CommitReading(Job& job, int module, int64_t step, double plasticity, Effects& effects) {
  v1::Observation observation;
  observation.set_module(module);
  observation.set_plasticity(plasticity);
  const bool refresh = job.requests.ReadingTaken(options_.clock());
  const absl::Status committed = CommitMeasured(job, step, std::move(observation), effects);
  if (refresh) PushDirectives(job, effects);
  if (committed.ok()) ++job.totals.readings;
  return committed;
}

void JobManager::Quarantine(const JobId& id, const absl::Status& why) {
  LogError("job ", id.text(), " is quarantined: ", why.message());
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (auto aside = journal_->SetAside(id); !aside.ok()) LogError("job ", id.text(), ": ", aside.status().message());
  ++quarantined_jobs_;
  Drop(id, absl::InternalError(absl::StrCat("the job was set aside: ", why.message())), effects);
}

void JobManager::DismissRanks(Job& job, const absl::Status& status, Effects& effects) {
  std::vector<v1::Counters> counters;
  for (auto& [number, rank] : job.ranks) {
    AddCounters(rank.counters, &job.counters_before);
    counters.push_back(rank.counters);
    if (rank.session.value() == 0) continue;
    sessions_.erase(rank.session);
    effects.Tell(rank.listener, [status](SessionListener& listener) { listener.OnClose(status); });
  }
  job.counters_before.set_commits(job.counters_before.commits() + CommitsOf(counters));
  job.ranks.clear();
}

void JobManager::Drop(const JobId& id, const absl::Status& status, Effects& effects) {
  auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  DismissRanks(*found->second, status, effects);
  jobs_.erase(found);
  effects.Add([evaluator = evaluator_.get(), id] {
    if (evaluator != nullptr) evaluator->RemoveJob(id);
  });
}

void JobManager::Maintain() {
  const absl::Time now = options_.clock();
  Effects effects;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<JobId> expired;
  std::vector<std::pair<absl::Time, JobId>> finished;
  for (const auto& [id, job] : jobs_) {
    const absl::Duration kept = job->state.finished() ? options_.finished_retention : options_.silent_retention;
    if (job->Sampler() >= 0) continue;
    if (now - job->last_activity > kept) {
      expired.push_back(id);
    } else if (job->state.finished()) {
      finished.emplace_back(job->last_activity, id);
    } else if (job->graphs_known && now - job->last_activity > options_.idle_reference) {
      // Its snapshots would take the place of others'. Its workers register anew, graphs and all.
      job->registered_here = job->graphs_known = false;
      RefreshRequests(*job, effects);
      effects.Add([evaluator = evaluator_.get(), id = id] { evaluator->RemoveJob(id); });
    }
  }
  std::sort(finished.begin(), finished.end());
  for (size_t i = 0; i + static_cast<size_t>(options_.max_jobs) < finished.size(); ++i) {
    expired.push_back(finished[i].second);
  }
  for (const JobId& id : expired) {
    if (absl::Status removed = journal_->Remove(id); !removed.ok()) {
      LogError("forgetting job ", id.text(), ": ", removed.message());
      continue;
    }
    LogInfo("job ", id.text(), ": past its retention, forgotten");
    Drop(id, absl::NotFoundError("[UNKNOWN_JOB] past its retention"), effects);
  }
}

}  // namespace egeria::controller

#include "controller/job/registrar.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/graph/graph_proto.h"
#include "common/policy/planned_saving.h"
#include "common/policy/policy_proto.h"
#include "controller/job/directives.h"
#include "controller/job/policy_inputs.h"
#include "controller/job/proto_time.h"
#include "controller/job/registration.h"

namespace egeria::controller {
namespace {

// A plan that comes to this part of a budget meets it, but for the steps between two looks.
constexpr double kMaxPartOfBudget = 0.95;

using storage::v1::Fact;

}  // namespace

RegisteredGraphs::RegisteredGraphs(const v1::RegisterJobRequest& request) {
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
}

std::vector<absl::Status> RegisteredGraphs::StatusAfter(std::vector<absl::Status> accepted) const {
  accepted.resize(graphs.size());
  for (size_t i = 0; i < graphs.size(); ++i) {
    if (!form[i].ok()) accepted[i] = form[i];
    if (local[i]) accepted[i] = absl::OkStatus();  // not the evaluator's to judge
  }
  return accepted;
}

void WarnIfBudgetIsOutOfReach(const v1::RegisterJobRequest& registration) {
  if (registration.budget() <= 0) return;
  const absl::StatusOr<double> saving =
      policy::PlannedSaving(policy::FromProto(registration.policy()), ShapeOf(registration));
  // A policy that waits for what it measures plans to save nothing, and may yet save enough.
  if (!saving.ok() || *saving <= 0 || *saving > kMaxPartOfBudget * registration.budget()) return;
  LogWarning("job ", registration.job_id(), ": a budget of ",
             absl::StrFormat("%.3g %% is out of reach: this policy plans to save %.3g %% of the time at most; for "
                             "more, give it other constants (docs/policies.md) or take another one",
                             100 * registration.budget(), 100 * *saving));
}

absl::StatusOr<Job*> Registrar::Register(const v1::RegisterJobRequest& request, const v1::PolicyConfig& policy,
                                         Effects& effects) {
  Job* job = table_->Find(JobId(request.job_id()));
  if (job != nullptr) {
    EGERIA_RETURN_IF_ERROR(Renew(*job, request, policy, effects));
  } else {
    EGERIA_ASSIGN_OR_RETURN(job, Admit(request, policy));
  }
  job->live.registered = true;
  job->live.last_activity = std::max(job->live.last_activity, options_->clock());
  return job;
}

absl::StatusOr<Job*> Registrar::Admit(const v1::RegisterJobRequest& request, const v1::PolicyConfig& policy) {
  EGERIA_RETURN_IF_ERROR(table_->CheckRoom());
  Fact fact = facts_->NewFact();
  v1::RegisterJobRequest* registered = fact.mutable_registered()->mutable_request();
  *registered = request;
  *registered->mutable_policy() = policy;
  if (request.mode() == v1::MODE_UNSPECIFIED) registered->set_mode(v1::MODE_ACT);
  for (v1::LayerModule& module : *registered->mutable_modules()) module.clear_graph();
  auto job = std::make_unique<Job>(JobId(request.job_id()));
  EGERIA_RETURN_IF_ERROR(facts_->Commit(*job, fact));
  if (!job->state.decisions().empty()) CountDecision(job->state.decisions().back(), &job->live.totals);
  LogInfo("job ", request.job_id(), " ('", request.training_job(), "'): registered, ", request.modules_size(),
          " modules, ", request.world_size(), " ranks, policy ", policy::PolicyName(job->state.policy_config()));
  return &table_->Add(std::move(job));
}

absl::Status Registrar::Renew(Job& job, const v1::RegisterJobRequest& request, const v1::PolicyConfig& policy,
                              Effects& effects) {
  if (request.generation() < job.state.generation().value()) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "STALE_GENERATION", "generation ",
                      job.state.generation().value(), " of this job has registered; this is ", request.generation());
  }
  EGERIA_RETURN_IF_ERROR(CompareRegistrations(job.state.registration(), request));
  const bool newer = request.generation() > job.state.generation().value();
  if (!newer && request.applied_plan() <= job.state.newest_plan().value()) return absl::OkStatus();
  EGERIA_RETURN_IF_ERROR(facts_->CommitPendingDecisions(job, effects));
  const size_t decisions_before = job.state.decisions().size();
  EGERIA_RETURN_IF_ERROR(StartGeneration(job, request, policy));
  // The other way round is left alone: an operator's observe mode outlives restarts, which say act by default.
  if (newer && request.mode() == v1::MODE_OBSERVE && job.state.mode() == v1::MODE_ACT) {
    Fact mode = facts_->NewFact();
    mode.mutable_mode_changed()->set_mode(v1::MODE_OBSERVE);
    EGERIA_RETURN_IF_ERROR(facts_->Commit(job, mode));
  }
  if (job.state.decisions().size() > decisions_before &&
      job.state.decisions().back().origin() == v1::DECISION_ORIGIN_WORKER) {
    CountDecision(job.state.decisions().back(), &job.live.totals);
  }
  if (newer) {
    table_->DismissRanks(job,
                         NamedError(absl::StatusCode::kFailedPrecondition, "STALE_GENERATION",
                                    "a newer generation of this job has registered"),
                         effects);
    job.live.graphs.known = false;
    job.live.blocked.clear();
  }
  job.live.filter.Reset();
  RefreshRequests(job, *options_, effects);
  return absl::OkStatus();
}

absl::Status Registrar::StartGeneration(Job& job, const v1::RegisterJobRequest& request,
                                        const v1::PolicyConfig& policy) {
  Fact fact = facts_->NewFact();
  auto* started = fact.mutable_generation_started();
  started->set_generation(request.generation());
  started->set_step(request.step());
  started->set_frozen_prefix(request.frozen_prefix());
  started->set_applied_plan(request.applied_plan());
  started->set_losses_unreported(request.losses_unreported());
  if (request.generation() > job.state.generation().value()) {
    const v1::RegisterJobRequest& known = job.state.registration();
    v1::RegisterJobRequest now = WithSettingsOf(known, request);
    *now.mutable_policy() = policy;
    if (now.SerializeAsString() != known.SerializeAsString()) {
      LogInfo("job ", job.id.text(), ": goes on with policy ", policy::PolicyName(policy::FromProto(policy)), ", ",
              now.total_steps(), " steps in all");
      *started->mutable_changed() = WithSettingsOf({}, now);
    }
  }
  EGERIA_RETURN_IF_ERROR(facts_->Commit(job, fact));
  LogInfo("job ", job.id.text(), ": generation ", request.generation(), " starts at step ", request.step(),
          " with frozen prefix ", request.frozen_prefix());
  return absl::OkStatus();
}

void Registrar::BookGraphs(Job& job, uint64_t fingerprint, std::vector<absl::Status> module_status,
                           std::vector<bool> local, Effects& effects) {
  JobGraphs& graphs = job.live.graphs;
  if (graphs.version == 0 || graphs.fingerprint != fingerprint) ++graphs.version;
  graphs.known = true;
  graphs.fingerprint = fingerprint;
  graphs.module_status = std::move(module_status);
  graphs.local_reference = std::move(local);
  RefreshRequests(job, *options_, effects);
}

v1::RegisterJobResponse Registrar::ResponseFor(const Job& job) const {
  v1::RegisterJobResponse response;
  *response.mutable_policy() = job.state.registration().policy();
  response.set_plan_id(job.state.newest_plan().value());
  response.set_frozen_prefix(job.state.planned_prefix());
  *response.mutable_heartbeat_interval() = DurationToProto(options_->heartbeat_interval);
  if (policy::RuleOf(job.state.policy_config()) == nullptr) return response;  // modules freeze without a reference
  const std::vector<absl::Status>& status = job.live.graphs.module_status;
  for (size_t i = 0; i < status.size(); ++i) {
    if (status[i].ok()) continue;
    auto* error = response.add_module_errors();
    error->set_module(static_cast<int>(i));
    error->set_reason(std::string(status[i].message()));
  }
  return response;
}

}  // namespace egeria::controller

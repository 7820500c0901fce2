#include "controller/job/registrar.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/status.h"
#include "common/graph/graph_proto.h"
#include "common/policy/planned_saving.h"
#include "common/policy/policy_proto.h"
#include "controller/job/directives.h"
#include "controller/job/policy_inputs.h"
#include "controller/job/registration.h"
#include "google/protobuf/util/time_util.h"

namespace egeria::controller {
namespace {

using storage::v1::Fact;

// A plan that comes to this part of a budget meets it, but for the steps between two looks.
constexpr double kMaxPartOfBudget = 0.95;

// The request with what it leaves open filled in, and without graphs. Errors: those of ValidateRegistration() and of
// policy::Resolve().
absl::StatusOr<v1::RegisterJobRequest> Resolve(v1::RegisterJobRequest request, const RegistrationLimits& limits) {
  EGERIA_RETURN_IF_ERROR(ValidateRegistration(request, limits));
  EGERIA_ASSIGN_OR_RETURN(const policy::PolicyConfig policy,
                          policy::Resolve(policy::FromProto(request.policy()), ShapeOf(request)));
  *request.mutable_policy() = policy::ToProto(policy);
  if (request.mode() == v1::MODE_UNSPECIFIED) request.set_mode(v1::MODE_ACT);
  request.DiscardUnknownFields();
  request.clear_secret();
  for (v1::LayerModule& module : *request.mutable_modules()) {
    module.clear_graph();
    module.clear_graph_error();
    module.set_name(Printable(module.name()));
  }
  // Names end up in logs, metrics, tables and files.
  for (std::string* name : {request.mutable_training_job(), request.mutable_host(), request.mutable_device_type()}) {
    *name = Printable(*name);
  }
  if (const size_t bytes = request.ByteSizeLong(); bytes > limits.max_bytes) {
    return NamedError(absl::StatusCode::kResourceExhausted, "REGISTRATION_TOO_LARGE", "it has ", bytes,
                      " bytes without its graphs; at most ", limits.max_bytes, " are possible");
  }
  return request;
}

// The generation of the processes that register. A start that the job has not seen is the next one.
int64_t GenerationFor(const v1::RegisterJobRequest& request, const JobState& job) {
  if (request.start_id() == 0) return request.generation();
  if (const std::optional<Generation> known = job.GenerationOf(request.start_id())) return known->value();
  return std::max(request.generation(), job.generation().value() + 1);
}

// Takes the graph's bytes from those that are left for the job.
absl::StatusOr<graph::ModuleGraph> GraphOf(const v1::LayerModule& module, size_t* bytes_left) {
  if (module.has_graph()) {
    const size_t bytes = module.graph().ByteSizeLong();
    if (bytes > *bytes_left) {
      return NamedError(absl::StatusCode::kResourceExhausted, "GRAPHS_TOO_LARGE", "its graph has ", bytes,
                        " bytes, and ", *bytes_left, " are left for this job");
    }
    *bytes_left -= bytes;
    return graph::FromProto(module.graph());
  }
  const std::string& why = module.graph_error();
  return NamedError(absl::StatusCode::kFailedPrecondition, "NO_GRAPH",
                    why.empty() ? "the worker sent none" : why.substr(0, 1'024));
}

// Warns where the job's policy cannot save as much as its budget asks for.
void WarnIfBudgetIsOutOfReach(const v1::RegisterJobRequest& registration) {
  if (registration.budget() <= 0) return;
  const absl::StatusOr<double> saving =
      policy::PlannedSaving(policy::FromProto(registration.policy()), ShapeOf(registration));
  // A policy that waits for what it measures plans to save nothing, and may yet save enough.
  if (!saving.ok() || *saving <= 0 || *saving > kMaxPartOfBudget * registration.budget()) return;
  LogWarning("job ", registration.job_id(), ": a budget of ",
             absl::StrFormat("%.3g %% is out of reach: this policy plans to save %.3g %% of the time at most; for "
                             "more, give it other constants (docs/reference/policies.md) or take another one",
                             100 * registration.budget(), 100 * *saving));
}

v1::RegisterJobResponse ResponseFor(const Job& job, const std::string& secret, const JobManagerOptions& options) {
  using google::protobuf::util::TimeUtil;
  v1::RegisterJobResponse response;
  response.set_secret(secret);
  *response.mutable_policy() = job.state.registration().policy();
  response.set_generation(job.state.generation().value());
  response.set_journal_epoch(job.state.registration().journal_epoch());
  response.set_plan_id(job.state.newest_plan().value());
  response.set_frozen_prefix(job.state.planned_prefix());
  *response.mutable_heartbeat_interval() =
      TimeUtil::NanosecondsToDuration(absl::ToInt64Nanoseconds(options.heartbeat_interval));
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

}  // namespace

absl::StatusOr<v1::RegisterJobResponse> Registrar::Register(const v1::RegisterJobRequest& request,
                                                            const rpc::Peer& caller) {
  EGERIA_ASSIGN_OR_RETURN(v1::RegisterJobRequest resolved, Resolve(request, jobs_->options.registration));
  const uint64_t fingerprint = GraphFingerprint(request);
  const JobId id(request.job_id());
  bool begins = true;  // the job, or a generation of it
  std::string secret;  // a new one
  {
    Effects effects(jobs_->evaluator.get());
    const MutexLock lock(&jobs_->mutex);
    if (jobs_->stopped) return absl::UnavailableError("the controller is going down");
    Job* job = jobs_->table.Find(id);
    if (job != nullptr) {
      EGERIA_RETURN_IF_ERROR(job->state.ownership().Check(caller, request.secret()));
      resolved.set_generation(GenerationFor(resolved, job->state));
      begins = resolved.generation() > job->state.generation().value();
      EGERIA_RETURN_IF_ERROR(Renew(*job, resolved, HashOfSecret(request.secret()), effects));
    } else {
      if (request.secret().empty()) secret = RandomToken();
      const std::string hash = HashOfSecret(secret.empty() ? request.secret() : secret);
      EGERIA_ASSIGN_OR_RETURN(job, Admit(resolved, {caller.identity, hash}, effects));
    }
    job->live.registered = true;
    job->live.last_activity = std::max(job->live.last_activity, jobs_->options.clock());
    if (job->live.graphs.known) {
      if (job->live.graphs.fingerprint != fingerprint) {
        LogWarning("job ", id.text(), ": a rank sent other module graphs than the first one; its own are passed over");
      }
      return ResponseFor(*job, secret, jobs_->options);
    }
  }
  if (begins) WarnIfBudgetIsOutOfReach(request);
  TakeGraphs(request, resolved.generation(), fingerprint);
  const MutexLock lock(&jobs_->mutex);
  EGERIA_ASSIGN_OR_RETURN(const Job* job, jobs_->table.Get(id));
  return ResponseFor(*job, secret, jobs_->options);
}

absl::StatusOr<Job*> Registrar::Admit(const v1::RegisterJobRequest& request, const Ownership& ownership,
                                      Effects& effects) {
  std::optional<JobId> makes_room;
  EGERIA_RETURN_IF_ERROR(jobs_->table.CheckRoom(ownership.owner, &makes_room));
  if (makes_room.has_value()) {
    EGERIA_RETURN_IF_ERROR(jobs_->journal->Remove(*makes_room));
    LogWarning("job ", makes_room->text(), ": it has registered and never begun, and makes room for another one");
    jobs_->table.Drop(*makes_room, absl::NotFoundError("[UNKNOWN_JOB] it never began"), effects);
  }
  Fact fact = jobs_->facts.NewFact();
  *fact.mutable_registered()->mutable_request() = request;
  fact.mutable_registered()->mutable_request()->set_journal_epoch(request.journal_epoch() + 1);
  fact.mutable_registered()->set_owner(ownership.owner);
  fact.mutable_registered()->set_secret_sha256(ownership.secret_hash);
  auto job = std::make_unique<Job>(JobId(request.job_id()));
  EGERIA_RETURN_IF_ERROR(jobs_->facts.Commit(*job, fact));
  LogInfo("job ", request.job_id(), " ('", request.training_job(), "'): registered, ", request.modules_size(),
          " modules, ", request.world_size(), " ranks, policy ", policy::PolicyName(job->state.policy_config()));
  return &jobs_->table.Add(std::move(job));
}

absl::Status Registrar::Renew(Job& job, const v1::RegisterJobRequest& request, const std::string& secret_hash,
                              Effects& effects) {
  if (request.generation() < job.state.generation().value()) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "STALE_GENERATION", "generation ",
                      job.state.generation().value(), " of this job has registered; this is ", request.generation());
  }
  if (request.generation() - job.state.generation().value() > jobs_->options.registration.max_generation_leap) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_GENERATION", "generation ", request.generation(),
                      " is too far beyond ", job.state.generation().value(), ", the newest one of this job");
  }
  const bool newer = request.generation() > job.state.generation().value();
  if (const int64_t own = job.state.registration().journal_epoch(); request.journal_epoch() > own) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "STALE_JOURNAL", "this journal has epoch ", own,
                      " of the job, and another one with epoch ", request.journal_epoch(),
                      " has served it since: start the controller on the newer one, or give the job a new id");
  }
  EGERIA_RETURN_IF_ERROR(CompareRegistrations(job.state.registration(), request, newer));
  if (!newer && NewestPlanOf(request) <= job.state.newest_plan().value()) return absl::OkStatus();
  if (!newer) {
    LogWarning("job ", job.id.text(), ": a rank has received plan ", NewestPlanOf(request), ", and the journal has ",
               job.state.newest_plan().value(), ": it has lost some; what the job has frozen counts, and ids go on");
  }
  EGERIA_RETURN_IF_ERROR(jobs_->facts.CommitPendingDecisions(job, effects));
  EGERIA_RETURN_IF_ERROR(StartGeneration(job, request, secret_hash));
  // The other way round is left alone: an operator's observe mode outlives restarts, which say act by default.
  if (newer && request.mode() == v1::MODE_OBSERVE && job.state.mode() == v1::MODE_ACT) {
    Fact mode = jobs_->facts.NewFact();
    mode.mutable_mode_changed()->set_mode(v1::MODE_OBSERVE);
    EGERIA_RETURN_IF_ERROR(jobs_->facts.Commit(job, mode));
  }
  if (newer) {
    jobs_->table.DismissRanks(job,
                              NamedError(absl::StatusCode::kFailedPrecondition, "STALE_GENERATION",
                                         "a newer generation of this job has registered"),
                              effects);
    job.live.graphs.known = false;
    job.live.blocked.clear();
    job.live.losses.CutAfter(request.step());
  }
  job.live.filter.Reset();
  RefreshRequests(job, jobs_->options, effects);
  return absl::OkStatus();
}

absl::Status Registrar::StartGeneration(Job& job, const v1::RegisterJobRequest& request,
                                        const std::string& secret_hash) {
  Fact fact = jobs_->facts.NewFact();
  auto* started = fact.mutable_generation_started();
  started->set_generation(request.generation());
  started->set_start_id(request.start_id());
  started->set_step(request.step());
  started->set_frozen_prefix(request.frozen_prefix());
  started->set_applied_plan(NewestPlanOf(request));
  started->set_losses_unreported(request.losses_unreported());
  if (secret_hash != job.state.ownership().secret_hash) started->set_secret_sha256(secret_hash);
  if (request.generation() > job.state.generation().value()) {
    const v1::RegisterJobRequest& known = job.state.registration();
    const v1::RegisterJobRequest now = WithSettingsOf(known, request);
    if (now.SerializeAsString() != known.SerializeAsString()) {
      LogInfo("job ", job.id.text(), ": goes on with policy ", policy::PolicyName(policy::FromProto(now.policy())),
              ", ", now.total_steps(), " steps in all, on ", now.world_size(), " ranks");
      *started->mutable_changed() = WithSettingsOf({}, now);
    }
  }
  EGERIA_RETURN_IF_ERROR(jobs_->facts.Commit(job, fact));
  LogInfo("job ", job.id.text(), ": generation ", request.generation(), " starts at step ", request.step(),
          " with frozen prefix ", request.frozen_prefix());
  return absl::OkStatus();
}

size_t Registrar::GraphBytesFor(const JobId& id) const {
  const RegistrationLimits& limits = jobs_->options.registration;
  size_t used = 0;
  for (const auto& [other, job] : jobs_->table.jobs()) {
    if (other != id && job->live.graphs.known) used += job->live.graphs.bytes;
  }
  return std::min(limits.max_graph_bytes, limits.max_all_graph_bytes - std::min(used, limits.max_all_graph_bytes));
}

void Registrar::TakeGraphs(const v1::RegisterJobRequest& request, int64_t generation, uint64_t fingerprint) {
  const JobId id(request.job_id());
  size_t bytes_left = 0;
  {
    const MutexLock lock(&jobs_->mutex);
    bytes_left = GraphBytesFor(id);
  }
  const size_t bytes_before = bytes_left;
  std::vector<std::optional<graph::ModuleGraph>> graphs;
  std::vector<absl::Status> status;
  std::vector<bool> local;
  for (const v1::LayerModule& module : request.modules()) {
    absl::StatusOr<graph::ModuleGraph> graph = GraphOf(module, &bytes_left);
    local.push_back(module.local_reference());
    status.push_back(local.back() ? absl::OkStatus() : graph.status());
    graphs.push_back(graph.ok() ? std::optional(*std::move(graph)) : std::nullopt);
  }
  reference::JobTraits traits;
  traits.shares_cpu = jobs_->options.SharesCores(request);
  {
    const MutexLock lock(&jobs_->mutex);
    const Job* const job = jobs_->table.Find(id);
    if (job == nullptr) return;
    // For any other policy readings are a second opinion, which may come when it can.
    const policy::PlasticityConfig* rule = policy::RuleOf(job->state.policy_config());
    if (rule != nullptr) traits.deadline_steps = rule->interval_steps;
  }
  std::vector<absl::Status> accepted = jobs_->evaluator->SetJob(id, graphs, traits);
  accepted.resize(graphs.size());
  for (size_t i = 0; i < graphs.size(); ++i) {
    if (graphs[i]) status[i] = std::move(accepted[i]);
  }
  Effects effects(jobs_->evaluator.get());
  const MutexLock lock(&jobs_->mutex);
  Job* const job = jobs_->table.Find(id);
  if (job == nullptr || job->state.generation().value() != generation) return;
  JobGraphs& booked = job->live.graphs;
  if (booked.version == 0 || booked.fingerprint != fingerprint) ++booked.version;
  booked.known = true;
  booked.bytes = bytes_before - bytes_left;
  booked.fingerprint = fingerprint;
  booked.module_status = std::move(status);
  booked.local_reference = std::move(local);
  RefreshRequests(*job, jobs_->options, effects);
}

}  // namespace egeria::controller

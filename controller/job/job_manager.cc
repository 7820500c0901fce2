#include "controller/job/job_manager.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/policy/policy_proto.h"
#include "controller/job/directives.h"
#include "controller/job/job_summary.h"
#include "controller/job/policy_inputs.h"
#include "controller/job/registration.h"

namespace egeria::controller {

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
    : options_(std::move(options)),
      table_(&options_),
      facts_(&options_, std::move(journal)),
      registrar_(&options_, &table_, &facts_),
      sessions_(&options_, &table_, &facts_),
      uploads_(&options_, &table_, &facts_),
      operators_(&options_, &table_, &facts_) {}

JobManager::~JobManager() { Stop(); }

void JobManager::Stop() {
  {
    Effects effects(evaluator_.get());
    const MutexLock lock(&mutex_);
    if (stopped_) return;
    stopped_ = true;
    for (auto& [id, job] : table_.jobs()) {
      table_.DismissRanks(*job, absl::UnavailableError("the controller is going down"), effects);
    }
  }
  if (evaluator_ != nullptr) evaluator_->Stop();
  const MutexLock lock(&mutex_);
  if (absl::Status synced = facts_.Sync(); !synced.ok()) LogError("stopping: ", synced.ToString());
}

absl::Status JobManager::Recover() {
  Effects effects(nullptr);
  const MutexLock lock(&mutex_);
  auto quarantined = facts_.Replay([this](const JobId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> Job& {
    Job* const known = table_.Find(id);
    return known != nullptr ? *known : table_.Add(std::make_unique<Job>(id));
  });
  if (!quarantined.ok()) return quarantined.status();
  for (const Journal::Quarantined& job : *quarantined) {
    LogError("job ", job.job.text(), " is quarantined: ", job.reason, "; its ", job.records,
             " records are kept aside and its workers will register it anew");
    table_.Drop(job.job, absl::InternalError(job.reason), effects);
  }
  quarantined_jobs_ = static_cast<int64_t>(quarantined->size());
  for (auto& [id, job] : table_.jobs()) {
    job->live.last_activity = job->state.last_fact_time();
    job->live.totals.readings = job->state.readings();
    for (const v1::Decision& decision : job->state.decisions()) CountDecision(decision, &job->live.totals);
    if (job->state.divergences() > 0) {
      LogWarning("job ", id.text(), ": ", job->state.divergences(),
                 " recorded decisions are not those that this version would make; the recorded ones stand");
    }
    EGERIA_RETURN_IF_ERROR(facts_.CommitPendingDecisions(*job, effects));
  }
  if (!table_.jobs().empty()) LogInfo("recovered ", table_.jobs().size(), " jobs from the journal");
  return absl::OkStatus();
}

// --- Registration ---

absl::StatusOr<v1::RegisterJobResponse> JobManager::RegisterJob(const v1::RegisterJobRequest& request) {
  EGERIA_RETURN_IF_ERROR(ValidateRegistration(request, options_.registration));
  EGERIA_ASSIGN_OR_RETURN(const policy::PolicyConfig policy,
                          policy::Resolve(policy::FromProto(request.policy()), ShapeOf(request)));
  const uint64_t fingerprint = GraphFingerprint(request);
  const JobId id(request.job_id());
  bool begins = true;  // the job, or a generation of it
  {
    Effects effects(evaluator_.get());
    const MutexLock lock(&mutex_);
    if (stopped_) return absl::UnavailableError("the controller is going down");
    if (const Job* known = table_.Find(id)) begins = request.generation() > known->state.generation().value();
    EGERIA_ASSIGN_OR_RETURN(const Job* job, registrar_.Register(request, policy::ToProto(policy), effects));
    if (job->live.graphs.known) {
      if (job->live.graphs.fingerprint != fingerprint) {
        LogWarning("job ", id.text(), ": a rank sent other module graphs than the first one; its own are passed over");
      }
      return registrar_.ResponseFor(*job);
    }
  }
  if (begins) WarnIfBudgetIsOutOfReach(request);
  TakeGraphs(request, fingerprint);
  const MutexLock lock(&mutex_);
  EGERIA_ASSIGN_OR_RETURN(const Job* job, table_.Get(id));
  return registrar_.ResponseFor(*job);
}

void JobManager::TakeGraphs(const v1::RegisterJobRequest& request, uint64_t fingerprint) {
  RegisteredGraphs registered(request);
  const JobId id(request.job_id());
  reference::JobTraits traits;
  traits.shares_cpu = options_.SharesCores(request);
  {
    const MutexLock lock(&mutex_);
    const Job* const job = table_.Find(id);
    if (job == nullptr) return;
    // For any other policy readings are a second opinion, which may come when it can.
    const policy::PlasticityConfig* rule = policy::RuleOf(job->state.policy_config());
    if (rule != nullptr) traits.deadline_steps = rule->interval_steps;
  }
  std::vector<absl::Status> status = registered.StatusAfter(evaluator_->SetJob(id, registered.graphs, traits));
  Effects effects(evaluator_.get());
  const MutexLock lock(&mutex_);
  Job* const job = table_.Find(id);
  if (job == nullptr || job->state.generation().value() != request.generation()) return;
  registrar_.BookGraphs(*job, fingerprint, std::move(status), std::move(registered.local), effects);
}

// --- Sessions ---

absl::StatusOr<SessionId> JobManager::OpenSession(const v1::Open& open, std::weak_ptr<SessionListener> listener) {
  Effects effects(evaluator_.get());
  const MutexLock lock(&mutex_);
  if (stopped_) return absl::UnavailableError("the controller is going down");
  return sessions_.Open(open, std::move(listener), effects);
}

void JobManager::CloseSession(SessionId session) {
  Effects effects(evaluator_.get());
  const MutexLock lock(&mutex_);
  sessions_.Close(session, effects);
}

absl::Status JobManager::Heartbeat(SessionId session, const v1::Heartbeat& heartbeat) {
  Effects effects(evaluator_.get());
  const MutexLock lock(&mutex_);
  return sessions_.Heartbeat(session, heartbeat, effects);
}

std::optional<v1::Directive> JobManager::DirectiveFor(SessionId session) const {
  const MutexLock lock(&mutex_);
  return sessions_.Directive(session);
}

// --- Uploads ---

absl::Status JobManager::CheckUpload(SessionId session, const v1::UploadBegin& begin) const {
  const MutexLock lock(&mutex_);
  return uploads_.Check(session, begin);
}

absl::Status JobManager::FinishUpload(SessionId session, const v1::UploadBegin& begin,
                                      std::vector<WireTensor> tensors) {
  int64_t bytes = 0;
  for (const WireTensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.size());
  UploadDesk::Accepted upload;
  {
    Effects effects(evaluator_.get());
    const MutexLock lock(&mutex_);
    EGERIA_ASSIGN_OR_RETURN(upload, uploads_.Accept(session, begin, effects));
  }
  const absl::Status taken = upload.for_evaluator ? Submit(upload.job, begin, std::move(tensors)) : absl::OkStatus();
  Effects effects(evaluator_.get());
  const MutexLock lock(&mutex_);
  uploads_.Book(session, begin, bytes, taken, effects);
  return taken;
}

absl::Status JobManager::Submit(const JobId& job, const v1::UploadBegin& begin, std::vector<WireTensor> tensors) {
  if (begin.has_snapshot()) {
    const v1::SnapshotHeader& header = begin.snapshot();
    return evaluator_->SubmitSnapshot(job, ModuleIndex(header.module()), header.version(), header.step(),
                                      std::move(tensors));
  }
  const v1::SampleHeader& header = begin.sample();
  const bool norm = header.metric() == v1::ACTIVATION_METRIC_NORM;
  return evaluator_->SubmitSample(
      job, {.first_module = ModuleIndex(header.first_module()),
            .module = ModuleIndex(header.module()),
            .step = header.step(),
            .request_version = header.request_version(),
            .tag = begin.upload_id(),
            .metric = norm ? plasticity::ActivationMetric::kActivationNorm : plasticity::ActivationMetric::kSpLoss,
            .tensors = std::move(tensors)});
}

absl::Status JobManager::TakeReading(SessionId session, const v1::Reading& reading) {
  Effects effects(evaluator_.get());
  const MutexLock lock(&mutex_);
  return uploads_.TakeReading(session, reading, effects);
}

absl::Status JobManager::TakeGradients(SessionId session, const v1::GradientReading& reading) {
  Effects effects(evaluator_.get());
  const MutexLock lock(&mutex_);
  return uploads_.TakeGradients(session, reading, effects);
}

void JobManager::CountRefusedUpload(SessionId session, const v1::UploadBegin& begin, const absl::Status& reason) {
  Effects effects(evaluator_.get());
  const MutexLock lock(&mutex_);
  uploads_.Book(session, begin, 0, reason, effects);
}

void JobManager::OnEvaluation(const reference::Evaluator::Result& result) {
  Effects effects(evaluator_.get());
  const MutexLock lock(&mutex_);
  if (!stopped_) uploads_.TakeEvaluation(result, effects);
}

// --- Operators and upkeep ---

v1::ListJobsResponse JobManager::ListJobs() const {
  v1::ListJobsResponse response;
  const MutexLock lock(&mutex_);
  for (const auto& [id, job] : table_.jobs()) *response.add_jobs() = Summarize(*job);
  return response;
}

absl::StatusOr<std::vector<v1::ExportRecord>> JobManager::ExportJob(const JobId& id) const {
  const MutexLock lock(&mutex_);
  EGERIA_ASSIGN_OR_RETURN(const Job* job, table_.Get(id));
  return ExportOf(*job);
}

absl::StatusOr<PlanId> JobManager::SetFrozenPrefix(const JobId& id, int frozen_prefix, const std::string& reason,
                                                   bool force) {
  Effects effects(evaluator_.get());
  const MutexLock lock(&mutex_);
  return operators_.SetFrozenPrefix(id, frozen_prefix, reason, force, effects);
}

absl::Status JobManager::SetPaused(const JobId& id, bool paused) {
  Effects effects(evaluator_.get());
  const MutexLock lock(&mutex_);
  return operators_.SetPaused(id, paused, effects);
}

absl::Status JobManager::SetMode(const JobId& id, v1::Mode mode) {
  Effects effects(evaluator_.get());
  const MutexLock lock(&mutex_);
  return operators_.SetMode(id, mode, effects);
}

void JobManager::Maintain() {
  Effects effects(evaluator_.get());
  const MutexLock lock(&mutex_);
  const JobTable::Leftovers leftovers = table_.FindLeftovers(options_.clock());
  for (Job* job : leftovers.idle) {
    // Its snapshots would take the place of others'. Its workers register anew, graphs and all.
    job->live.registered = job->live.graphs.known = false;
    RefreshRequests(*job, options_, effects);
    effects.TellEvaluator([id = job->id](reference::Evaluator& evaluator) { evaluator.RemoveJob(id); });
  }
  for (const JobId& id : leftovers.expired) {
    if (absl::Status removed = facts_.Forget(id); !removed.ok()) {
      LogError("forgetting job ", id.text(), ": ", removed.message());
      continue;
    }
    LogInfo("job ", id.text(), ": past its retention, forgotten");
    table_.Drop(id, absl::NotFoundError("[UNKNOWN_JOB] past its retention"), effects);
  }
}

ManagerView JobManager::View() const {
  ManagerView view;
  {
    const MutexLock lock(&mutex_);
    for (const auto& [id, job] : table_.jobs()) view.jobs.push_back(ViewOf(*job));
    view.quarantined_jobs = quarantined_jobs_;
    view.journal_errors = facts_.journal_errors();
  }
  view.evaluator = evaluator_->counters();
  return view;
}

std::string JobManager::DebugString(const JobId& id) const {
  const MutexLock lock(&mutex_);
  const Job* const job = table_.Find(id);
  return job == nullptr ? "" : job->state.DebugString();
}

}  // namespace egeria::controller

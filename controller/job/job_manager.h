#ifndef EGERIA_CONTROLLER_JOB_JOB_MANAGER_H_
#define EGERIA_CONTROLLER_JOB_JOB_MANAGER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/policy/policy_config.h"
#include "common/tensor/wire_tensor.h"
#include "controller/job/job_view.h"
#include "controller/job/journal.h"
#include "controller/job/registration.h"
#include "controller/reference/evaluator.h"
#include "egeria/v1/admin.pb.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// Which modules the reference runs for a reading: the frontmost one, or all up to it (the paper's way).
enum class ReferenceScope { kModule, kPrefix };

struct JobManagerOptions {
  ReferenceScope scope = ReferenceScope::kModule;
  std::string host;  // this machine's name, as workers send theirs
  int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // of it
  absl::Duration heartbeat_interval = absl::Seconds(1);
  int max_jobs = 4'096;                          // that have not finished; and that have, the newest
  int64_t max_observations_per_job = 1'000'000;  // in memory and in the journal
  absl::Duration finished_retention = absl::Hours(24 * 30);
  absl::Duration idle_reference = absl::Minutes(10);      // after so long without a stream a job's reference models go
  absl::Duration silent_retention = absl::Hours(24 * 7);  // of jobs that never finished
  RegistrationLimits registration;
  std::function<absl::Time()> clock = absl::Now;
};

// A rank's stream as the manager sees it. Its methods are called without any lock of the manager held, from
// any thread, and must not block.
class SessionListener {
 public:
  virtual ~SessionListener() = default;
  // What DirectiveFor() returns may have changed.
  virtual void OnDirectiveChanged() = 0;
  virtual void OnUploadRefused(int64_t upload_id, const absl::Status& reason) = 0;
  // The session is over; end the stream with this status.
  virtual void OnClose(const absl::Status& status) = 0;
};

using SessionId = Id<struct SessionIdTag>;

// All jobs of a controller: ties each job's state to its journal, its ranks' streams and the reference
// engine. The RPC handlers call it and decide nothing themselves.
//
// Thread-safe, by one mutex that is never held over a call to a listener or to the evaluator (it is held
// over journal writes, which define the order of facts). Stop() is idempotent; the destructor calls it.
class JobManager {
 public:
  using EvaluatorFactory =
      std::function<absl::StatusOr<std::unique_ptr<reference::Evaluator>>(reference::Evaluator::Callback on_result)>;

  // Recovers every job from `journal` and starts the evaluator. Errors: those of Journal::Replay and of the
  // factory.
  static absl::StatusOr<std::unique_ptr<JobManager>> Start(JobManagerOptions options, std::unique_ptr<Journal> journal,
                                                           const EvaluatorFactory& make_evaluator);
  ~JobManager();

  // Closes every session with UNAVAILABLE, stops the evaluator and syncs the journal.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // --- The Controller service. Errors as controller.proto lists them. ---
  absl::StatusOr<v1::RegisterJobResponse> RegisterJob(const v1::RegisterJobRequest& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<SessionId> OpenSession(const v1::Open& open, std::weak_ptr<SessionListener> listener)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The stream has ended, for whatever reason. Harmless for a session that the manager has closed itself.
  void CloseSession(SessionId session) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Heartbeat(SessionId session, const v1::Heartbeat& heartbeat) ABSL_LOCKS_EXCLUDED(mutex_);
  // What this rank is to do now; empty where the session is over.
  std::optional<v1::Directive> DirectiveFor(SessionId session) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the upload is wanted, before its bytes are taken in. An error is the UploadResult's reason, but
  // for ABORTED: the session is over.
  absl::Status CheckUpload(SessionId session, const v1::UploadBegin& begin) const ABSL_LOCKS_EXCLUDED(mutex_);
  // A complete upload. Errors as CheckUpload.
  absl::Status FinishUpload(SessionId session, const v1::UploadBegin& begin, std::vector<WireTensor> tensors)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A reading of a module with a local reference. An error is the UploadResult's reason, but for ABORTED: the
  // session is over.
  absl::Status TakeReading(SessionId session, const v1::Reading& reading) ABSL_LOCKS_EXCLUDED(mutex_);
  // The gradients of a step. Errors as TakeReading's.
  absl::Status TakeGradients(SessionId session, const v1::GradientReading& reading) ABSL_LOCKS_EXCLUDED(mutex_);
  // An upload was refused before it got here.
  void CountRefusedUpload(SessionId session, const v1::UploadBegin& begin, const absl::Status& reason)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // --- The Admin service. Errors as admin.proto lists them. ---
  v1::ListJobsResponse ListJobs() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::vector<v1::ExportRecord>> ExportJob(const JobId& job) const ABSL_LOCKS_EXCLUDED(mutex_);
  // `force`: though the policy objects.
  absl::StatusOr<PlanId> SetFrozenPrefix(const JobId& job, int frozen_prefix, const std::string& reason, bool force)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SetPaused(const JobId& job, bool paused) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SetMode(const JobId& job, v1::Mode mode) ABSL_LOCKS_EXCLUDED(mutex_);

  // --- Upkeep and metrics ---
  // Forgets jobs that are past their retention; call it now and then.
  void Maintain() ABSL_LOCKS_EXCLUDED(mutex_);
  ManagerView View() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The state of a job as text, for tests of recovery. Empty for an unknown job.
  std::string DebugString(const JobId& job) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Rank;
  struct Job;
  class Effects;
  struct Found {
    Job* job;
    Rank* rank;
    int rank_number;
  };

  JobManager(JobManagerOptions options, std::unique_ptr<Journal> journal);
  absl::Status Recover();
  void OnEvaluation(const reference::Evaluator::Result& result) ABSL_LOCKS_EXCLUDED(mutex_);

  // Registration (job_manager.cc).
  absl::StatusOr<Job*> AdmitJob(const v1::RegisterJobRequest& request, const v1::PolicyConfig& policy, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Hands the graphs to the evaluator and books what it says of them.
  void TakeGraphs(const v1::RegisterJobRequest& request, uint64_t fingerprint) ABSL_LOCKS_EXCLUDED(mutex_);
  v1::RegisterJobResponse ResponseFor(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RenewJob(Job& job, const v1::RegisterJobRequest& request, const v1::PolicyConfig& policy,
                        Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Facts (job_manager.cc). Commit() checks, journals and applies; a fact that the state then refuses
  // quarantines the job.
  absl::Status Commit(Job& job, const std::vector<storage::v1::Fact>& facts, bool sync, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CommitPendingDecisions(Job& job, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CommitObservations(Job& job, const std::vector<v1::Observation>& observations, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Something measured of `step`, with the learning rate in force. Errors: UNAVAILABLE [JOURNAL], logged.
  absl::Status CommitMeasured(Job& job, int64_t step, v1::Observation observation, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A reading of the frontmost module that the policy is to see. Errors: UNAVAILABLE [JOURNAL], logged.
  absl::Status CommitReading(Job& job, int module, int64_t step, double plasticity, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets a job aside whose journal and state disagree.
  void Quarantine(const JobId& id, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the sessions of all ranks and forgets the ranks, but not their counters.
  void DismissRanks(Job& job, const absl::Status& status, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes a job; its sessions end with `status`.
  void Drop(const JobId& id, const absl::Status& status, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // What is wanted of the ranks (job_manager_sessions.cc).
  void RefreshRequests(Job& job, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PushDirectives(const Job& job, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the job computes on this machine's CPU.
  bool SharesCores(const v1::RegisterJobRequest& registration) const {
    return registration.device_type() == "cpu" && registration.host() == options_.host;
  }
  // What evaluating the reference has taken of a training that could have used all cores of the node itself: an upper
  // bound; 0 where it has cores of its own.
  double SecondsOfReference(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Found> Find(SessionId session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Job*> FindJob(const JobId& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckUploadLocked(const Found& found, const v1::UploadBegin& begin) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckReading(const Found& found, const v1::Reading& reading) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BookUpload(SessionId session, const v1::UploadBegin& begin, int64_t bytes, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Summaries (job_manager_admin.cc).
  v1::JobSummary Summarize(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  JobView ViewOf(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const JobManagerOptions options_;
  std::unique_ptr<reference::Evaluator> evaluator_;  // constant once started; synchronises itself

  mutable std::mutex mutex_;
  std::unique_ptr<Journal> journal_ ABSL_GUARDED_BY(mutex_);
  std::map<JobId, std::unique_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionId, std::pair<JobId, int>> sessions_ ABSL_GUARDED_BY(mutex_);
  SessionId last_session_ ABSL_GUARDED_BY(mutex_);
  int64_t quarantined_jobs_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t journal_errors_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOB_MANAGER_H_

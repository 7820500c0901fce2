#ifndef EGERIA_CONTROLLER_JOB_JOB_MANAGER_H_
#define EGERIA_CONTROLLER_JOB_JOB_MANAGER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/tensor/wire_tensor.h"
#include "common/thread/mutex.h"
#include "controller/job/fact_writer.h"
#include "controller/job/job_manager_options.h"
#include "controller/job/job_table.h"
#include "controller/job/job_view.h"
#include "controller/job/journal.h"
#include "controller/job/operator_desk.h"
#include "controller/job/registrar.h"
#include "controller/job/session_desk.h"
#include "controller/job/session_listener.h"
#include "controller/job/upload_desk.h"
#include "controller/reference/evaluator.h"
#include "egeria/v1/admin.pb.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

// All jobs of a controller: ties each job's state to its journal, its ranks' streams and the reference
// engine. The RPC handlers call it and decide nothing themselves. It holds the lock; its parts do the work:
//   JobTable      which jobs and sessions there are, and which jobs have had their time
//   FactWriter    how a job changes durably
//   Registrar     jobs and generations that begin
//   SessionDesk   the ranks' streams and what they are to do
//   UploadDesk    what they send, and what the reference engine makes of it
//   OperatorDesk  what is changed by hand
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
  // A complete upload, judged by its own right; a refusal is counted. Errors as CheckUpload, and those of the
  // evaluator.
  absl::Status FinishUpload(SessionId session, const v1::UploadBegin& begin, std::vector<WireTensor> tensors)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A reading of a module with a local reference. An error is the UploadResult's reason, but for ABORTED: the
  // session is over.
  absl::Status TakeReading(SessionId session, const v1::Reading& reading) ABSL_LOCKS_EXCLUDED(mutex_);
  // The gradients of a step. Errors are those of TakeReading().
  absl::Status TakeGradients(SessionId session, const v1::GradientReading& reading) ABSL_LOCKS_EXCLUDED(mutex_);
  // An upload was refused before it was complete.
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
  JobManager(JobManagerOptions options, std::unique_ptr<Journal> journal);
  absl::Status Recover() ABSL_LOCKS_EXCLUDED(mutex_);
  // Hands the graphs to the evaluator and books what it says of them.
  void TakeGraphs(const v1::RegisterJobRequest& request, uint64_t fingerprint) ABSL_LOCKS_EXCLUDED(mutex_);
  // Hands the tensors of an upload to the evaluator.
  absl::Status Submit(const JobId& job, const v1::UploadBegin& begin, std::vector<WireTensor> tensors);
  void OnEvaluation(const reference::Evaluator::Result& result) ABSL_LOCKS_EXCLUDED(mutex_);

  const JobManagerOptions options_;
  std::unique_ptr<reference::Evaluator> evaluator_;  // constant once started; synchronises itself

  mutable Mutex mutex_;
  JobTable table_ ABSL_GUARDED_BY(mutex_);
  FactWriter facts_ ABSL_GUARDED_BY(mutex_);
  Registrar registrar_ ABSL_GUARDED_BY(mutex_);
  SessionDesk sessions_ ABSL_GUARDED_BY(mutex_);
  UploadDesk uploads_ ABSL_GUARDED_BY(mutex_);
  OperatorDesk operators_ ABSL_GUARDED_BY(mutex_);
  int64_t quarantined_jobs_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOB_MANAGER_H_

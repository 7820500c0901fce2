#ifndef EGERIA_CONTROLLER_JOB_JOB_MANAGER_H_
#define EGERIA_CONTROLLER_JOB_JOB_MANAGER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/thread/mutex.h"
#include "controller/job/job_manager_options.h"
#include "controller/job/job_view.h"
#include "controller/job/journal.h"
#include "controller/job/operator_desk.h"
#include "controller/job/registrar.h"
#include "controller/job/session_desk.h"
#include "controller/job/shared_jobs.h"
#include "controller/job/upload_desk.h"
#include "controller/reference/evaluator.h"
#include "egeria/v1/admin.pb.h"

namespace egeria::controller {

// All jobs of a controller: ties each job's state to its journal, its ranks' streams and the reference engine. It
// starts, stops, cleans up and shows the jobs. Its parts serve the calls. The RPC handlers call them and decide nothing
// themselves.
//   Registrar     begins jobs and generations.
//   SessionDesk   holds the ranks' streams and says what the ranks are to do.
//   UploadDesk    takes what they send, and what the reference engine makes of it.
//   OperatorDesk  takes what is changed by hand.
// All of them work on SharedJobs, whose JobTable finds jobs and sessions and whose FactWriter changes a job durably.
//
// Thread-safe, as its parts are, by the lock of SharedJobs. Stop() is idempotent; the destructor calls it.
class JobManager {
 public:
  using EvaluatorFactory =
      std::function<absl::StatusOr<std::unique_ptr<reference::Evaluator>>(reference::Evaluator::Callback on_result)>;

  // Recovers every job from `journal` and starts the evaluator. Errors: those of Journal::Replay and of the factory.
  static absl::StatusOr<std::unique_ptr<JobManager>> Start(JobManagerOptions options, std::unique_ptr<Journal> journal,
                                                           const EvaluatorFactory& make_evaluator);
  ~JobManager() { Stop(); }

  // Closes every session with UNAVAILABLE, stops the evaluator and syncs the journal.
  void Stop() ABSL_LOCKS_EXCLUDED(jobs_.mutex);

  Registrar& registrar() { return registrar_; }
  SessionDesk& sessions() { return sessions_; }
  UploadDesk& uploads() { return uploads_; }
  OperatorDesk& operators() { return operators_; }

  // Lets the journal look after its disk; call it every second or so. Returns OK, or why what is decided is not safe.
  absl::Status Tend() ABSL_LOCKS_EXCLUDED(jobs_.mutex);
  // Forgets jobs that are past their retention; call it now and then.
  void Maintain() ABSL_LOCKS_EXCLUDED(jobs_.mutex);
  v1::ListJobsResponse ListJobs() const ABSL_LOCKS_EXCLUDED(jobs_.mutex);
  // The next records of an export, some hundred, so that no call holds the lock or memory for long; none at its end.
  // Errors: NOT_FOUND [UNKNOWN_JOB]; ABORTED [HISTORY_CHANGED] a generation has begun meanwhile.
  absl::StatusOr<std::vector<v1::ExportRecord>> ExportJob(const JobId& job, ExportCursor* cursor) const
      ABSL_LOCKS_EXCLUDED(jobs_.mutex);
  // OK, or why no reference can be evaluated.
  absl::Status ReferenceHealth() const { return jobs_.evaluator->health(); }
  // Errors: NOT_FOUND [UNKNOWN_JOB].
  absl::StatusOr<JobDetail> ShowJob(const JobId& job) const ABSL_LOCKS_EXCLUDED(jobs_.mutex);
  // All jobs. Where there are many, they are not all of one moment, so that nobody waits long for the lock.
  ManagerView View() const ABSL_LOCKS_EXCLUDED(jobs_.mutex);
  // The state of a job as text, for tests of recovery. Empty for an unknown job.
  std::string DebugString(const JobId& job) const ABSL_LOCKS_EXCLUDED(jobs_.mutex);

 private:
  JobManager(JobManagerOptions options, std::unique_ptr<Journal> journal)
      : jobs_(std::move(options), std::move(journal)) {}
  absl::Status Recover() ABSL_LOCKS_EXCLUDED(jobs_.mutex);

  SharedJobs jobs_;
  Registrar registrar_{&jobs_};
  SessionDesk sessions_{&jobs_};
  UploadDesk uploads_{&jobs_};
  OperatorDesk operators_{&jobs_};
  void Report(const std::vector<Journal::Damaged>& damaged, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_.mutex);

  int64_t damaged_jobs_ = 0;  // constant once started, as is the next
  int64_t lost_records_ = 0;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOB_MANAGER_H_

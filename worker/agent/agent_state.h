#ifndef EGERIA_WORKER_AGENT_AGENT_STATE_H_
#define EGERIA_WORKER_AGENT_AGENT_STATE_H_

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/thread/mutex.h"
#include "egeria/v1/controller.pb.h"
#include "worker/agent/agent.h"
#include "worker/agent/loss_buffer.h"
#include "worker/agent/upload_queue.h"
#include "worker/agent/wakeup.h"

namespace egeria::worker {

// Holds what the training loop has told and what the controller wants. Two threads meet here: the training thread calls
// the first group of methods, and the agent's own thread the second. No method waits for anything but the mutex, and
// none holds it longer than a copy takes. Thread-safe.
class AgentState {
 public:
  AgentState(const JobDescription& job, size_t queue_bytes, size_t queue_samples, std::shared_ptr<Wakeup> wakeup);

  // See Agent.
  void ReportStep(const StepReport& report);
  std::optional<SamplingRequest> sampling() const;
  std::optional<SnapshotRequest> snapshot() const;
  std::optional<GradientRequest> gradients() const;
  PlanId watermark() const;
  std::optional<Plan> plan(PlanId id) const;
  bool Offer(Upload upload);
  AgentCounters counters() const;

  // Puts the present step and plan into a registration.
  void FillProgress(v1::RegisterJobRequest* request) const;

  // The controller says which generation this is.
  void TakeGeneration(Generation generation);

  // A stream has been opened, and its controller knows nothing yet: losses are sent from the oldest on. The first
  // directive will say which snapshot is wanted; uploads wait for it, too.
  void BeginStream();
  // The stream has ended, with `unsent` in mid-upload.
  void EndStream(std::optional<Upload> unsent);

  // True when something has changed that the controller should hear at once, or losses are left over.
  bool HeartbeatIsUrgent() const;
  // The next heartbeat; hands out the losses in it.
  v1::Heartbeat TakeHeartbeat();

  // Makes the directive's wishes the present ones, and delivers its plans. A wish or plan that breaks the contract is
  // left out, counted, and logged once for each kind.
  void Apply(const v1::Directive& directive);
  void UploadRefused(const v1::UploadResult& result);

  std::optional<Upload> TakeUpload();
  void UploadSent(const Upload& upload);

  // No controller will take this job: nothing is wanted and nothing is queued any more.
  void GiveUp();

 private:
  // `total` counts from the controller's start, which may have been before that of this process or after it.
  void CountReference(double total) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues an upload; a snapshot only if none of its version or a newer one has been.
  bool Queue(Upload upload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogOnce(const std::string& key, const std::string& message);
  std::optional<SamplingRequest> Checked(const v1::SamplingRequest& request);
  std::optional<SnapshotRequest> Checked(const v1::SnapshotRequest& request);
  std::optional<GradientRequest> Checked(const v1::GradientRequest& request);
  bool ModulesAreValid(int32_t first, int32_t last) const;

  // Says whether so much of the training has passed since the newest heartbeat that a policy may have to decide.
  bool IsTimeToTell(int64_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // These are constant.
  const int rank_;
  const int64_t steps_to_tell_;  // 0: the number of steps is not known
  const int module_count_;
  const std::shared_ptr<Wakeup> wakeup_;

  // Only the agent's own thread uses these.
  Generation generation_;
  std::set<std::string> logged_;
  int64_t streams_ = 0;

  mutable Mutex mutex_;
  std::optional<double> reference_seconds_ ABSL_GUARDED_BY(mutex_);  // the last directive's
  StepReport report_ ABSL_GUARDED_BY(mutex_);
  LossBuffer losses_ ABSL_GUARDED_BY(mutex_);
  PlanLedger ledger_ ABSL_GUARDED_BY(mutex_);
  UploadQueue uploads_ ABSL_GUARDED_BY(mutex_);
  AgentCounters counters_ ABSL_GUARDED_BY(mutex_);
  std::optional<SamplingRequest> sampling_ ABSL_GUARDED_BY(mutex_);
  std::optional<SnapshotRequest> snapshot_ ABSL_GUARDED_BY(mutex_);
  std::optional<GradientRequest> gradients_ ABSL_GUARDED_BY(mutex_);
  int64_t answered_version_ ABSL_GUARDED_BY(mutex_) = -1;  // the version of the snapshots in answered_
  // Modules whose snapshot was queued, and not lost with a stream.
  std::set<ModuleIndex> answered_ ABSL_GUARDED_BY(mutex_);
  bool urgent_ ABSL_GUARDED_BY(mutex_) = true;
  // The step of the newest heartbeat, and when it was taken.
  int64_t told_step_ ABSL_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point told_at_ ABSL_GUARDED_BY(mutex_);
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_AGENT_STATE_H_

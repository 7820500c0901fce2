#ifndef EGERIA_COMMON_METRICS_HEALTH_H_
#define EGERIA_COMMON_METRICS_HEALTH_H_

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/monotonic.h"
#include "common/thread/mutex.h"

namespace egeria::metrics {

// Keeps what is wrong with a daemon, part by part. Its main loop calls Beat() each time that it has come around; a loop
// that stands still is stuck. Never waits for anything that could be stuck itself. Thread-safe.
class Health {
 public:
  explicit Health(absl::Duration patience = absl::Seconds(10)) : patience_(patience) {}

  // The daemon has started, or is about to stop.
  void SetServing(bool serving) ABSL_LOCKS_EXCLUDED(mutex_);
  void Beat() ABSL_LOCKS_EXCLUDED(mutex_);
  // Says how a part does: it is fine, or it is degraded, which others may not notice.
  void SetDegraded(const std::string& part, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Says how a part does without which the daemon is of no use.
  void SetUseless(const std::string& part, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  // OK if it serves, and can: UNAVAILABLE with the reasons.
  absl::Status Ready() const ABSL_LOCKS_EXCLUDED(mutex_);
  // OK if nothing at all is wrong: UNAVAILABLE with the reasons.
  absl::Status Healthy() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Parts = std::map<std::string, std::string>;  // the reason by part
  static void Set(Parts* parts, const std::string& part, const absl::Status& status);

  const absl::Duration patience_;
  mutable Mutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time beat_ ABSL_GUARDED_BY(mutex_) = MonotonicNow();
  Parts degraded_ ABSL_GUARDED_BY(mutex_);
  Parts useless_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace egeria::metrics

#endif  // EGERIA_COMMON_METRICS_HEALTH_H_

#ifndef EGERIA_LAUNCHER_NODE_CACHE_H_
#define EGERIA_LAUNCHER_NODE_CACHE_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/base/file_lock.h"
#include "launcher/arguments.h"
#include "launcher/daemon_process.h"
#include "launcher/signals.h"

namespace egeria::run {

// The egeria-cache that a job uses. It is the one of the node's folder, which is adopted if it runs and started if not,
// or one that somebody else takes care of. A cache that was started serves all jobs of the node that come meanwhile,
// and ends when the last of them has ended. It does not matter in what way they end, since each holds no more than a
// file lock on the folder. Thread-compatible.
class NodeCache {
 public:
  // Only warns when something goes wrong: a job runs with or without a cache.
  NodeCache(const Arguments& arguments, const Signals& signals);

  // The value for EGERIA_CACHE: an address, or "none".
  const std::string& address() const { return address_; }
  // Looks after a cache that was started here, about once a second: one that has ended is started again, three times at
  // most, after one second, two and four. Logs what happens, and does not wait.
  void Tend(const Signals& signals);
  // Says that the job no longer uses the cache. Waits a moment for it to end if no other job uses it.
  void Leave(Signals* signals);

 private:
  void FindOrStart(const std::string& folder, const Signals& signals, absl::Duration patience);
  void StartAgain(const Signals& signals);

  std::string address_ = "none";
  std::string folder_;
  std::optional<FileLock> use_;
  std::optional<DaemonProcess> process_;  // none: adopted
  int restarts_ = 0;
  std::optional<absl::Time> restart_at_;  // by the monotonic clock
};

}  // namespace egeria::run

#endif  // EGERIA_LAUNCHER_NODE_CACHE_H_

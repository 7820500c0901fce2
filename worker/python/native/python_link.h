#ifndef EGERIA_WORKER_PYTHON_NATIVE_PYTHON_LINK_H_
#define EGERIA_WORKER_PYTHON_NATIVE_PYTHON_LINK_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/thread/fork_guard.h"
#include "worker/agent/agent.h"
#include "worker/session/rank_link.h"
#include "worker/session/session_metrics.h"

namespace egeria::python {

// Every process asks this before it uses gRPC, which does not live through a fork.
// Errors: FAILED_PRECONDITION [FORKED] a parent of this process has used it.
absl::Status ClaimGrpc();

// The parts of a link, as Python describes them.
struct LinkOptions {
  worker::JobDescription job;
  std::string controller;        // empty: there is none
  bool starts_with_job = false;  // see AgentOptions
  std::string commit_group;      // the name of a c10d group over gloo that nobody else uses; empty for a world of one
  std::string device = "cpu";
  std::vector<std::pair<int64_t, int>> plans;  // frozen prefixes by step, where there is no controller
  std::string metrics;                         // "host:port"; empty: they are not served
  // Returns true if a signal has come that Python must handle now; it is asked while waiting for other ranks.
  std::function<bool()> interrupted;
};

// One rank's link as an object of Python: a RankLink with a lock, so that it serves one call at a time, and beside it
// the server of its metrics. It is meant for the training thread; others wait.
//
// Free of Python itself: the callers release the interpreter's lock before they call. Thread-safe. In a forked child
// the link does nothing, and what the object holds is leaked rather than destroyed.
class PythonLink {
 public:
  // Errors: INVALID_ARGUMENT [BAD_LINK] a contradiction in the options; [NO_GROUP], [BAD_DEVICE];
  // FAILED_PRECONDITION [FORKED] a parent of this process has had a link to a controller; those of
  // PlanSchedule::Make(), SessionMetrics::ServeIfFree() and Agent::Start().
  static absl::StatusOr<std::shared_ptr<PythonLink>> Start(LinkOptions options);
  ~PythonLink();

  // Returns what `call` does with the link, which nobody else uses meanwhile.
  template <typename Call>
  auto Use(const Call& call) {
    const std::unique_lock<std::timed_mutex> lock = Lock();
    return call(*link_);
  }

  // The port that the metrics are served at; 0: they are not.
  int metrics_port() const { return metrics_.Call(&worker::SessionMetrics::port); }

  // At the end of the process, stops every link that is left, without signals. It gives up after seconds on a link that
  // another thread is using.
  static void StopAll();

 private:
  explicit PythonLink(std::shared_ptr<worker::SessionMetrics> metrics) : metrics_(std::move(metrics)) {}
  // In a forked child the lock is not taken: some thread of the parent may hold it for ever.
  std::unique_lock<std::timed_mutex> Lock();

  // The only lock here that is held while waiting for other ranks.
  const ForkGuard<std::timed_mutex> in_use_{std::make_shared<std::timed_mutex>()};
  const ForkGuard<worker::SessionMetrics> metrics_;
  std::unique_ptr<worker::RankLink> link_;  // uses the metrics; null until Start() has made it
  std::atomic<bool> deaf_ = false;          // signals are no longer asked for
};

// The process group of this name, which Python made; null for an empty name.
// Errors: INVALID_ARGUMENT [NO_GROUP].
absl::StatusOr<worker::ProcessGroupPtr> FindGroup(const std::string& name);

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_PYTHON_LINK_H_

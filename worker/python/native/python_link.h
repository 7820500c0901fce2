#ifndef EGERIA_WORKER_PYTHON_NATIVE_PYTHON_LINK_H_
#define EGERIA_WORKER_PYTHON_NATIVE_PYTHON_LINK_H_

#include <sys/types.h>
#include <unistd.h>

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
#include "worker/agent/agent.h"
#include "worker/session/rank_link.h"
#include "worker/session/session_metrics.h"

namespace egeria::python {

// To be asked before this process uses gRPC, which does not live through a fork.
// Errors: FAILED_PRECONDITION [FORKED] a parent of this process has used it.
absl::Status ClaimGrpc();

// What a link is made of, as Python says it.
struct LinkOptions {
  worker::JobDescription job;
  std::string controller;    // empty: none
  std::string commit_group;  // the name of a c10d group over gloo, of its own; empty for a world of one
  std::string device = "cpu";
  std::vector<std::pair<int64_t, int>> plans;  // where there is no controller
  std::string metrics;                         // "host:port"; empty: none
  // True if a signal has come that Python must handle now; asked while waiting for other ranks.
  std::function<bool()> interrupted;
};

// One rank's link as an object of Python, with what lives beside it: the metrics' server and the group.
//
// Free of Python itself: the callers release the interpreter's lock before they call. Thread-safe, one call at
// a time; it is meant for the training thread, the others wait. In a forked child every method does nothing, and
// what the object holds is leaked rather than destroyed: its threads are not there to be joined.
class PythonLink {
 public:
  // Errors: INVALID_ARGUMENT [BAD_LINK] a contradiction in the options; [NO_GROUP], [BAD_DEVICE];
  // FAILED_PRECONDITION [FORKED] a parent of this process has had a link to a controller; those of
  // PlanSchedule::Make(), SessionMetrics::Serve() and Agent::Start().
  static absl::StatusOr<std::shared_ptr<PythonLink>> Start(LinkOptions options);
  ~PythonLink();

  // See RankLink. `asked` is RankLink::IsAsked().
  template <typename Request>
  struct Asked {
    Request request;
    bool asked = false;
  };
  std::optional<Asked<worker::SamplingRequest>> SamplingFor(int64_t step);
  std::optional<Asked<worker::SnapshotRequest>> SnapshotWanted(int64_t step);
  std::optional<Asked<worker::GradientRequest>> GradientsFor(int64_t step);
  bool OfferGradients(const worker::GradientRequest& request, int64_t step, worker::GradientSquares own);
  bool OfferSample(const worker::SamplingRequest& request, int64_t step, std::vector<worker::NamedTensor> inputs,
                   const at::Tensor& compared);
  bool OfferReading(const worker::SamplingRequest& request, int64_t step, double plasticity);
  bool OfferSnapshot(const worker::SnapshotRequest& request, int64_t module, int64_t step,
                     std::vector<worker::NamedTensor> tensors);
  absl::StatusOr<std::optional<worker::Plan>> Commit(int64_t step);
  void Report(int64_t step, const at::Tensor& loss, const std::vector<double>& learning_rates, int frozen_prefix,
              int zero_lr_prefix);
  void RecordSwitch(bool unfreeze, bool identical);
  void RecordDroppedSample();
  void SetModelTotals(double frozen_share, int64_t bytes_reduced);
  void SetAccount(worker::AccountTotals totals);
  void SetCacheTotals(worker::CacheTotals totals);

  struct Counters {
    worker::SessionTotals totals;
    worker::AgentCounters agent;
    int64_t applied_plan = 0;
    int metrics_port = 0;  // 0: none
  };
  Counters counters();

  // Ends the link: waits for other ranks at most for `patience`, and for the controller at most two seconds.
  // Idempotent. Errors: those of Committer::Stop(), after which it has ended all the same.
  absl::Status Stop(bool finished, std::chrono::milliseconds patience);

  // For the end of the process: stops every link that is left, without signals, and gives up after seconds on
  // one that another thread is using.
  static void StopAll();

 private:
  PythonLink() = default;
  bool InChild() const;

  const pid_t pid_ = ::getpid();
  std::timed_mutex in_use_;  // one call at a time; the only lock here that is held while waiting for other ranks
  // Guarded by in_use_.
  worker::ProcessGroupPtr group_;
  std::unique_ptr<worker::SessionMetrics> metrics_;
  std::unique_ptr<worker::RankLink> link_;  // uses metrics_
  std::atomic<bool> deaf_ = false;          // no longer asks for signals
};

// The process group of this name, which Python made; null for an empty name.
// Errors: INVALID_ARGUMENT [NO_GROUP].
absl::StatusOr<worker::ProcessGroupPtr> FindGroup(const std::string& name);

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_PYTHON_LINK_H_

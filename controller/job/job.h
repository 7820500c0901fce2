#ifndef EGERIA_CONTROLLER_JOB_JOB_H_
#define EGERIA_CONTROLLER_JOB_JOB_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "controller/job/gradient_requests.h"
#include "controller/job/job_manager.h"
#include "controller/job/job_state.h"
#include "controller/job/observation_filter.h"
#include "controller/job/standing_requests.h"

// The inside of JobManager, shared by its source files and by nobody else.
namespace egeria::controller {

// For messages that a fault could repeat without end: true for the 1st, 2nd, 4th, 8th, ...
inline bool WorthSaying(int64_t count) { return (count & (count - 1)) == 0; }

// One rank of the current generation: what it told last, and its stream while it has one.
struct JobManager::Rank {
  SessionId session;  // 0: not connected
  uint64_t incarnation = 0;
  std::weak_ptr<SessionListener> listener;
  bool heard = false;  // whether the fields below are its own word
  int64_t step = 0;
  int frozen_prefix = 0;
  PlanId watermark;
  v1::Counters counters;
};

// A job as the manager holds it: the durable state, and what only lasts as long as this process.
struct JobManager::Job {
  JobId id;
  JobState state;
  int64_t next_sequence = 1;  // in the journal

  bool registered_here = false;  // since this controller started, so that its graphs are known
  bool graphs_known = false;
  uint64_t graph_fingerprint = 0;
  int64_t graph_version = 0;
  std::vector<absl::Status> module_status;  // whether each module can be evaluated
  std::vector<bool> local_reference;        // whether its worker evaluates it; as the graphs, not durable
  std::string blocked;                      // why the frontmost module cannot be, said once
  std::string blocked_by_policy;            // its PolicyStatus::blocked, said when it begins

  std::map<int, Rank> ranks;
  ObservationFilter filter;
  StandingRequests requests;
  GradientRequests gradients;
  absl::Time last_activity = absl::InfinitePast();
  absl::Time last_heartbeat = absl::InfinitePast();
  bool observations_full = false;
  bool evaluation_failed = false;  // said once
  JobTotals totals;
  std::optional<v1::Account> account;  // what rank 0 told last
  v1::Counters counters_before;        // of processes that have gone

  bool IsLocal(int module) const {
    return static_cast<size_t>(module) < local_reference.size() && local_reference[static_cast<size_t>(module)];
  }

  // The lowest connected rank, which samples for all; -1 for none. Readings of one rank make a steadier
  // series than those of several, whose batches differ.
  int Sampler() const {
    for (const auto& [number, rank] : ranks) {
      if (rank.session.value() != 0) return number;
    }
    return -1;
  }
};

// What is to be done once the mutex is released, in order. Declare it before the lock:
//   Effects effects;
//   const std::lock_guard<std::mutex> lock(mutex_);
class JobManager::Effects {
 public:
  Effects() = default;
  Effects(const Effects&) = delete;
  Effects& operator=(const Effects&) = delete;
  ~Effects() {
    for (const auto& action : actions_) action();
  }
  void Add(std::function<void()> action) { actions_.push_back(std::move(action)); }
  // Calls `call` on the listener if the stream still exists.
  void Tell(std::weak_ptr<SessionListener> listener, std::function<void(SessionListener&)> call) {
    Add([listener = std::move(listener), call = std::move(call)] {
      if (auto alive = listener.lock()) call(*alive);
    });
  }

 private:
  std::vector<std::function<void()>> actions_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOB_H_

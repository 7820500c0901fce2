#ifndef EGERIA_CONTROLLER_JOB_JOB_H_
#define EGERIA_CONTROLLER_JOB_JOB_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "controller/job/curve.h"
#include "controller/job/gradient_requests.h"
#include "controller/job/job_state.h"
#include "controller/job/job_view.h"
#include "controller/job/observation_filter.h"
#include "controller/job/rank_table.h"
#include "controller/job/standing_requests.h"

// A job as the controller holds it. Plain values without a lock: their owner, JobManager, holds one.
namespace egeria::controller {

// The reference engine's knowledge of a job's modules. Workers tell it anew after every start of the controller.
struct JobGraphs {
  bool known = false;
  uint64_t fingerprint = 0;
  int64_t version = 0;
  size_t bytes = 0;                         // serialised, those of all modules
  std::vector<absl::Status> module_status;  // for each module: OK if it can be evaluated
  std::vector<bool> local_reference;        // for each module: whether its worker evaluates it

  bool IsLocal(int module) const {
    return static_cast<size_t>(module) < local_reference.size() && local_reference[static_cast<size_t>(module)];
  }
};

// As many points of the losses are kept of each job, some 12 KiB.
constexpr size_t kLossPoints = 512;

// The part of a job that only lasts as long as this process.
struct LiveJob {
  bool registered = false;  // since the controller started
  JobGraphs graphs;
  RankTable ranks;
  ObservationFilter filter;
  StandingRequests requests;
  GradientRequests gradients;
  absl::Time last_activity = absl::InfinitePast();
  absl::Time last_heartbeat = absl::InfinitePast();
  std::optional<v1::Account> account;    // the newest one of rank 0
  std::optional<v1::CacheReport> cache;  // likewise
  Curve losses{kLossPoints};             // rank 0 tells them; people look at them
  JobTotals totals;

  // These have been logged, and are not logged again.
  std::string blocked;            // why the frontmost module cannot be evaluated
  std::string blocked_by_policy;  // JobState::blocked(), as it was last
  std::string advice;             // the policy's, as it was last
  bool observations_full = false;
  bool evaluation_failed = false;
};

struct Job {
  explicit Job(JobId job_id) : id(std::move(job_id)) {}

  const JobId id;
  JobState state;             // the journal gives it back after a restart
  int64_t next_sequence = 1;  // in the journal
  LiveJob live;
};

// The name of an error, "STALE_REQUEST" for "[STALE_REQUEST] ...", and "OTHER" for one without a name.
inline std::string NameOfError(const absl::Status& status) {
  const std::string message(status.message());
  const size_t end = message.find(']');
  return message.empty() || message[0] != '[' || end == std::string::npos ? "OTHER" : message.substr(1, end - 1);
}

// For messages that a fault could repeat without end: true for the 1st, 2nd, 4th, 8th and so on.
inline bool WorthSaying(int64_t count) { return (count & (count - 1)) == 0; }

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOB_H_

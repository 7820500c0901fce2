#ifndef EGERIA_CONTROLLER_JOB_JOB_VIEW_H_
#define EGERIA_CONTROLLER_JOB_JOB_VIEW_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/policy/policy.h"
#include "controller/job/curve.h"
#include "controller/job/job_state.h"
#include "controller/reference/evaluator.h"
#include "egeria/v1/admin.pb.h"
#include "egeria/v1/controller.pb.h"

// Operators and metrics are shown these plain values of the controller's jobs. Pure.
namespace egeria::controller {

struct Job;

// Totals of one job since this controller knows it. They never fall.
struct JobTotals {
  // Counts a decision that has become official.
  void Count(const v1::Decision& decision);

  int64_t readings = 0;
  int64_t gradient_readings = 0;
  int64_t samples_received = 0;
  int64_t snapshots_received = 0;
  int64_t snapshot_bytes = 0;
  std::map<std::string, int64_t> uploads_refused;                    // by the error's name
  std::map<std::pair<std::string, std::string>, int64_t> decisions;  // by action and origin
  std::map<std::string, double> reference_seconds;                   // by backend
  std::map<std::string, int64_t> evaluations;                        // by backend

  // The ranks tell these.
  int64_t worker_samples_dropped = 0;  // by the workers' queues
  int64_t commits = 0;                 // plans that the furthest rank has committed
  int64_t reconnects = 0;              // the sum over all ranks
};

struct JobView {
  v1::JobSummary summary;
  std::vector<std::string> modules;
  std::map<std::string, std::string> unusable;  // modules without a reference, and the name of the reason
  policy::PolicyStatus policy;
  JobTotals totals;
  std::optional<v1::Account> account;    // the newest one of rank 0
  std::optional<v1::CacheReport> cache;  // likewise; empty where it has none
  absl::Time last_activity;
};

// The newest numbers that a rank of the current generation has told.
struct RankView {
  int number = 0;
  bool connected = false;
  int64_t step = 0;
  int frozen_prefix = 0;
  v1::Counters counters;
};

// One job with all that a person may want to see of it.
struct JobDetail {
  JobView view;
  std::vector<RankView> ranks;  // the first kRanks of those that have ever connected
  std::vector<Curve::Point> losses;

  static constexpr int kRanks = 256;
};

struct JournalView {
  int64_t damaged_jobs = 0;  // found at the start, as are the lost records
  int64_t lost_records = 0;
  int64_t errors = 0;
  int64_t backlog_bytes = 0;
};

struct ManagerView {
  std::vector<JobView> jobs;
  reference::EvaluatorCounters evaluator;
  JournalView journal;
  absl::Time now;  // by the clock of last_activity
};

v1::JobSummary Summarize(const Job& job);
JobView ViewOf(const Job& job);
JobDetail DetailOf(const Job& job);

// How far an export has come.
struct ExportCursor {
  bool begun = false;
  int64_t generation = 0;
  JobState::HistoryPlace place;
};
// The next few hundred records of: the job's header, and everything that its policy saw and decided, in order. Errors:
// ABORTED [HISTORY_CHANGED].
absl::StatusOr<std::vector<v1::ExportRecord>> NextOfExport(const Job& job, ExportCursor* cursor);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOB_VIEW_H_

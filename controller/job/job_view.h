#ifndef EGERIA_CONTROLLER_JOB_JOB_VIEW_H_
#define EGERIA_CONTROLLER_JOB_JOB_VIEW_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/policy/policy.h"
#include "controller/reference/evaluator.h"
#include "egeria/v1/admin.pb.h"
#include "egeria/v1/controller.pb.h"

// What the controller shows of its jobs, as plain values, for metrics.
namespace egeria::controller {

// Totals of one job since this controller knows it. They never fall.
struct JobTotals {
  int64_t readings = 0;
  int64_t gradient_readings = 0;
  int64_t samples_received = 0;
  int64_t snapshots_received = 0;
  int64_t snapshot_bytes = 0;
  std::map<std::string, int64_t> uploads_refused;                    // by the error's name
  std::map<std::pair<std::string, std::string>, int64_t> decisions;  // by action and origin
  std::map<std::string, double> reference_seconds;                   // by backend
  std::map<std::string, int64_t> evaluations;                        // by backend
  int64_t worker_samples_dropped = 0;                                // by the workers' queues; as they tell
  int64_t commits = 0;                                               // of plans, as the ranks tell; the furthest rank's
  int64_t reconnects = 0;                                            // of all ranks
};

struct JobView {
  v1::JobSummary summary;
  std::vector<std::string> modules;
  policy::PolicyStatus policy;
  JobTotals totals;
  std::optional<v1::Account> account;  // what rank 0 told last
  absl::Time last_activity;
};

struct ManagerView {
  std::vector<JobView> jobs;
  reference::EvaluatorCounters evaluator;
  int64_t quarantined_jobs = 0;
  int64_t journal_errors = 0;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOB_VIEW_H_

#ifndef EGERIA_WORKER_TRAINER_SUMMARY_H_
#define EGERIA_WORKER_TRAINER_SUMMARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/accounting/time_ledger.h"
#include "worker/session/cache_totals.h"

namespace egeria::trainer {

// A summary says what one run did and reached. docs/reference/formats/summary.md explains each field.
struct RunSummary {
  struct Decision {
    int64_t step = 0;
    std::string action;  // "freeze" or "unfreeze"
    int frozen_prefix = 0;
    bool ranks_identical = true;
  };
  std::string task;
  std::string policy;
  std::string mode;  // "plain", "act", "observe" or "plans"
  int ranks = 1;
  double seconds = 0;       // the time of training steps, without evaluation
  double wall_seconds = 0;  // the time from the first step to the last evaluation
  double accuracy = 0;      // 0..1, on the validation images
  double validation_loss = 0;
  double frozen_share = 0;          // a share of the parameters, averaged over the steps
  double frozen_share_by_time = 0;  // the same, each step weighted by its duration
  std::vector<Decision> decisions;
  bool ranks_identical = true;  // after every switch and at the end
  int64_t steps = 0;
  int64_t epochs = 0;
  uint64_t seed = 0;
  std::vector<std::string> modules;
  std::string parameters_hash;    // xxh3-64 of parameters and buffers at the end, in hexadecimal
  int64_t bytes_all_reduced = 0;  // rank 0's
  int64_t samples_sent = 0;       // rank 0's
  int64_t samples_dropped = 0;
  worker::CacheTotals cache;  // rank 0's, like the next two
  worker::TimeTotals account;
  std::optional<double> time_saved_share;  // saved less spent, of what the steps would have taken; empty: not known
};

// Returns one line for a person.
std::string Describe(const RunSummary& summary);

// {"runs": [run]} as indented text.
std::string ToJson(const RunSummary& summary);

// Writes `text` to `path` so that a reader sees the old file or the new one, whole.
// Errors: UNAVAILABLE [CANNOT_WRITE].
absl::Status WriteAtomically(const std::string& path, const std::string& text);

// One step of a --plans file.
struct PlannedSwitch {
  int64_t step = 0;
  int frozen_prefix = 0;
};
// Reads [{"step":..,"frozen_prefix":..},...], or the decisions of the first run of a summary.
// Errors: NOT_FOUND [NO_PLANS]; INVALID_ARGUMENT [BAD_PLANS].
absl::StatusOr<std::vector<PlannedSwitch>> ReadPlans(const std::string& path);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_SUMMARY_H_

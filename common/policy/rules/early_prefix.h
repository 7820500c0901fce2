#ifndef EGERIA_COMMON_POLICY_RULES_EARLY_PREFIX_H_
#define EGERIA_COMMON_POLICY_RULES_EARLY_PREFIX_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/policy/policy.h"
#include "common/policy/policy_config.h"
#include "common/policy/rules/progress_shares.h"

namespace egeria::policy {

// This rule freezes, before a clock would, front modules that take a good part of a step's time and make next to
// nothing of the training's progress. The embedding of a language model that is fine-tuned is such a module.
//
// Let f be the upper end of a prefix's share of the progress (ProgressShares), and s its share of a step's time. Let
// `left` be the part of the area under the learning rates that is to come. Freezing the prefix then gives up
//
//   c f left       c = .4: the modules behind learn most of what the frozen ones would have learned
//
// of all progress. That must be worth the time, c f <= max_share * s. Together with what was given up before it must
// not be more than `lr_area_left`, of which the clock has the rest to give up when it freezes everything. Lookup tables
// need no readings: where none come, or they do not tell clearly, their f is taken for .05, which it was under wherever
// it was measured. Nothing else freezes without readings.
//
// The rule is sound where rates fall smoothly only: behind a sudden drop the loss falls since the noise of the weights
// does, of which first-order progress says nothing. docs/adr/0017 has what was measured. Thread-compatible.
class EarlyPrefix {
 public:
  struct Found : Proposal {
    double given_up = 0;  // c f left, of all progress
  };

  // Nothing is ever found with max_share 0, or where the job does not tell step shares or the rates to come, or plans a
  // sudden drop.
  EarlyPrefix(double max_share, double lr_area_left, const JobShape& shape);

  // Says whether something may freeze early at `step`, where the rates to come are on average `mean_rate_to_come` times
  // those of the whole training.
  bool IsTime(int64_t step, double mean_rate_to_come) const;

  // The learning rate has changed: readings of before say nothing of now. After a fall at once nothing is found.
  void OnRateChange(bool fell);
  // Training goes on from an older step, before any fall.
  void GoBack() { fell_at_once_ = false; }

  // Returns the first step at which it may be time.
  int64_t first_step() const { return first_step_; }

  // Takes in a reading of the active modules.
  void Add(const GradientReading& reading);

  // Returns the deepest prefix over `frozen` and up to `max` that may freeze, by readings of the modules from `frozen`
  // on. Where readings have come once, it waits for new ones after each change.
  std::optional<Found> Look(int frozen, int max, double left) const;

  // The freeze of what was found has come true.
  void Book(const Found& found);
  // Modules 0..prefix-1 were frozen by this rule before the job began, when at most `left` was to come. That has given
  // up no more than what they take is worth.
  void BookBefore(int prefix, double left);
  // Something else is frozen from now on.
  void OnPrefix() { shares_.Forget(); }

  // Returns the part of all progress that early freezes have given up.
  double given_up() const { return given_up_; }

 private:
  std::optional<Found> Judge(int first, int prefix, double left) const;

  const double max_share_;
  const double lr_area_left_;
  const int embedding_prefix_;
  const int64_t first_step_;
  const std::vector<double> times_;  // shares of all modules, adding up to 1
  const bool possible_;
  bool fell_at_once_ = false;
  bool readings_come_ = false;
  ProgressShares shares_;
  double given_up_ = 0;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_EARLY_PREFIX_H_

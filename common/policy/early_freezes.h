#ifndef EGERIA_COMMON_POLICY_EARLY_FREEZES_H_
#define EGERIA_COMMON_POLICY_EARLY_FREEZES_H_

#include <optional>
#include <string>
#include <vector>

#include "common/policy/policy.h"
#include "common/policy/policy_config.h"
#include "common/policy/progress_shares.h"

namespace egeria::policy {

// What may freeze before a clock's start: front modules that take a good part of a step's time and make next to nothing
// of the training's progress, such as the embedding of a language model that is fine-tuned.
//
// With f the upper end of a prefix's share of the progress (ProgressShares), s its share of a step's time and `left`
// the part of the area under the learning rates that is to come, freezing it gives up
//
//   c f left       c = .4: most of what frozen modules would have learned is learned by those behind them
//
// of all progress. That must be worth the time, c f <= most_share * s, and with what was given up before not be more
// than `area_left`, of which the clock has the rest to give up when it freezes everything. Where no readings come, or
// they do not tell clearly, f of lookup tables is taken for .05, which it was under wherever it was measured; nothing
// else freezes then.
//
// It is sound where rates fall smoothly only: behind a sudden drop the loss falls since the noise of the weights does,
// of which first-order progress says nothing. docs/adr/0017 has what was measured. Thread-compatible.
class EarlyFreezes {
 public:
  struct Found {
    int first = 0;  // of the modules first..prefix-1, which freeze together
    int prefix = 0;
    double missed = 0;    // c f
    double given_up = 0;  // c f left, of all progress
    std::string reason;
  };

  // Never finds anything with most_share 0, or where the job does not tell step shares or the rates to come, or plans a
  // sudden drop.
  EarlyFreezes(double most_share, double area_left, const JobShape& shape);

  // Whether this job may freeze anything early.
  bool possible() const { return possible_; }

  void Add(const GradientReading& reading);
  // Readings for Look() so far say nothing of now. Where some have come, it finds nothing before as many have come
  // anew.
  void Forget() { shares_.Forget(); }

  // The deepest prefix over `frozen` and up to `most` that may freeze, by readings that tell of all from `frozen` on.
  std::optional<Found> Look(int frozen, int most, double left) const;
  // That freeze came true, with so much to come; it takes the place of others of the same modules.
  void Book(const Found& found, double left);

  // Of all progress, by what was booked and stands, or stood for a while.
  double given_up() const;

  // Modules that are frozen by this, and stand without having to be noise.
  int prefix() const { return booked_.empty() ? 0 : booked_.back().prefix; }
  // No more than so many are frozen now, with so much to come: what unfrozen modules will learn is not given up.
  void Limit(int prefix, double left);

  // A probe begins, or begins anew: readings of all modules come, the frozen ones among them, instead of those for
  // Look(). When they have come: whether modules 0..frozen-1, whoever froze them, may stay; and, once a probe, whether
  // two in a row have found that 0..prefix()-1 make too much of the progress. Nothing is found any more after that.
  void BeginProbe() { probe_.Forget(); }
  void AddToProbe(const GradientReading& reading) { probe_.Add(reading); }
  std::optional<Found> Justified(int frozen, double left) const;
  bool IsContradicted();

 private:
  std::optional<Found> Judge(const ProgressShares& shares, int first, int prefix, double left) const;
  // Of all progress, if modules from `first` on unfreeze with so much to come, or are booked anew.
  double GivenUpWithout(int first, double left) const;
  // Of modules from `first` on, which unfreeze or are booked anew.
  void Refund(int first, double left);
  double TimeShare(int first, int prefix) const;

  const double most_share_;
  const int embedding_prefix_;
  const double area_left_;
  const std::vector<double> times_;  // of all modules, adding up to 1
  bool possible_;
  ProgressShares shares_;
  ProgressShares probe_;
  bool readings_come_ = false;
  std::vector<Found> booked_;  // of what is frozen, from the front on
  double past_ = 0;            // given up by what has unfrozen since
  int contradicted_ = 0;       // probes in a row
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_EARLY_FREEZES_H_

#ifndef EGERIA_COMMON_POLICY_RULES_RATE_CHANGES_H_
#define EGERIA_COMMON_POLICY_RULES_RATE_CHANGES_H_

#include <cstdint>
#include <deque>
#include <optional>

namespace egeria::policy {

// RateChanges tells when the learning rate has changed so that older gradients say nothing of the present ones:
//
// - It has risen by more than 10 % over the least one since the last change, however slowly.
// - It has fallen by more than 10 % at once. A slow decay is no change, since gradients of a higher rate have, if
//   anything, more signal than those of now. But rates are observed seldom, and near its end a cosine falls by more
//   than that between two observations. So a fall counts only where it makes up more than 40 % (in logarithms) of
//   what the rate has fallen over the last tenth of all steps.
//
// Thread-compatible.
class RateChanges {
 public:
  // Takes in the rate in force at a step, at least 0; steps do not decrease but for Forget(). Returns whether it has
  // changed so; it never has the first time.
  bool Observe(int64_t step, double rate);

  // Training goes on from an older step.
  void Forget();

  std::optional<double> newest() const {
    return rates_.empty() ? std::nullopt : std::optional<double>(rates_.back().rate);
  }

 private:
  struct Rate {
    int64_t step = 0;  // from which on the rate is known to have been in force
    double rate = 0;
  };

  bool FellAtOnce(int64_t step, double rate) const;

  std::deque<Rate> rates_;  // those in the last tenth of all steps, and the one before; each differs from the next
  double lowest_ = 0;       // since the last change
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_RATE_CHANGES_H_

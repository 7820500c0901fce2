#ifndef EGERIA_COMMON_POLICY_RULES_SNR_H_
#define EGERIA_COMMON_POLICY_RULES_SNR_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "common/policy/policy.h"

namespace egeria::policy {

// A pooled SNR comes with the readings that it was made of.
struct PooledSnr {
  SnrEstimate snr;
  int readings = 0;    // as many as the module with the fewest has
  double samples = 0;  // in a step, on average over the readings that tell; 0: none does
};

// An estimator tells the signal-to-noise ratio of modules' gradients, SNR = ||E g||^2 / E||g||^2 at the full batch,
// from their last readings. Thread-compatible.
//
// With N parts, D the mean of their squares and Q the square of their mean,
//
//   A = (N Q - D) / (N - 1)              has the expectation ||E g||^2
//   r = sum A / sum D  over readings     the SNR at the batch of one part
//   SNR = N r / (1 + (N - 1) r)          at the full batch
//
// The interval is the one of a ratio of sums. With e_i = A_i - r D_i and M readings, the standard error s of r is
// sqrt(M / (M - 1) sum e_i^2) / sum D. The ends are r -+ t(M - 1) s, with t Student's 95 % quantile, both brought to
// the full batch by the same formula. tests/common/policy/rules/snr_test.cc tells how often it covers the truth.
//
// Modules are pooled by the inverse variance of their r. Their gradients are of the same samples and so not
// independent: the pooled error is made of the weighted sums of all modules' e_i at a step.
class SnrEstimator {
 public:
  // Keeps the last `window` >= 2 readings of each of `modules` >= 1 modules.
  SnrEstimator(int modules, int window);

  // Takes in a reading, and returns whether it did. A reading with fewer than two parts says nothing of noise. One with
  // another number of parts than those before is left out; where the next ones have it, too, they replace those before.
  // Numbers that are not finite, or negative, are as if not read.
  bool Add(const GradientReading& reading);

  void Forget();

  // Returns how many readings module 0 <= m < modules has.
  int readings(int module) const { return static_cast<int>(history_[static_cast<size_t>(module)].size()); }

  // Estimates these modules together, or a single one. A module with fewer than two readings, or whose gradients were
  // all exactly zero, has no estimate and is left out; empty where none has one.
  std::optional<PooledSnr> Pooled(const std::vector<int>& modules) const;

 private:
  struct Entry {
    int64_t step = 0;
    double signal = 0;  // A
    double square = 0;  // D
    int64_t samples = 0;
  };
  struct Ratio {
    double value = 0;     // r
    double variance = 0;  // the variance of r
    double squares = 0;   // sum D
  };

  std::optional<Ratio> RatioOf(int module) const;
  SnrEstimate AtFullBatch(double ratio, double half_width) const;

  const size_t window_;
  int parts_ = 0;              // 0: none read yet
  int of_another_number_ = 0;  // readings in a row with another number of parts
  std::vector<std::deque<Entry>> history_;
};

// Brings the threshold `at_64` for the SNR of a full batch of 64 samples to a batch of `samples`. Noise falls with the
// batch, the signal does not: with c = samples / 64 a threshold t becomes c t / (1 + (c - 1) t). It stays as it is
// where the samples are unknown, 0.
double ThresholdAtBatch(double at_64, double samples);

// Returns the 95 % quantile of Student's t with `degrees` >= 1 degrees of freedom, to three digits from 3 degrees on.
double StudentQuantile95(int degrees);

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_SNR_H_

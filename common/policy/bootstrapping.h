#ifndef EGERIA_COMMON_POLICY_BOOTSTRAPPING_H_
#define EGERIA_COMMON_POLICY_BOOTSTRAPPING_H_

#include <cstdint>
#include <deque>
#include <optional>

namespace egeria::policy {

// The bootstrapping stage of a training (paper, section 4.2) is the time before its loss has settled, in which nothing
// is to be frozen. Once the losses reach back at least 6n steps from the newest, at step s, the means over the steps
// (s-3n, s] and (s-6n, s-3n] are compared. The stage ends when they differ by under 10 % of the older one's magnitude
// (or not at all). Both are over the losses that were observed, at whatever steps. Where losses are never reported it
// ends 6n steps after the job's first one, as it does at the earliest with losses. Once ended it stays ended.
//
// It holds the losses of at most 6n steps. Thread-compatible.
class Bootstrapping {
 public:
  // Requires interval_steps (n) >= 1.
  explicit Bootstrapping(int64_t interval_steps);
  // Returns the stage of a job that began with first_step >= 0 steps done and never reports a loss.
  static Bootstrapping WithoutLosses(int64_t interval_steps, int64_t first_step);

  // Takes in a finite loss; one of an older step than the newest is ignored, as is any WithoutLosses(). Returns true
  // once over.
  bool Observe(int64_t step, double loss);

  // Training has got to `step`, which counts only WithoutLosses().
  void Pass(int64_t step);

  // Returns the step with which a stage WithoutLosses() ends; empty for any other, or once over.
  std::optional<int64_t> awaited_step() const;
  bool wants_loss() const { return !over_ && !blind_from_; }

  // Forgets the losses, for a training that goes on from an older step.
  void Restart();

  bool over() const { return over_; }

 private:
  struct StepLoss {
    int64_t step = 0;
    double sum = 0;
    int64_t count = 0;
  };

  const int64_t half_;                 // 3n
  std::optional<int64_t> blind_from_;  // the job's first step, where no losses are reported
  bool over_ = false;
  std::optional<int64_t> first_step_;  // the first one with a loss
  std::deque<StepLoss> losses_;        // the last 6n steps, rising
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_BOOTSTRAPPING_H_

#ifndef EGERIA_CONTROLLER_POLICY_BOOTSTRAPPING_H_
#define EGERIA_CONTROLLER_POLICY_BOOTSTRAPPING_H_

#include <cstdint>
#include <deque>
#include <optional>

namespace egeria::policy {

// The bootstrapping stage of a training (paper, section 4.2): the time before its loss has settled, in which
// nothing is to be frozen. With the newest loss at step s, the stage ends when the losses reach back at least
// 6n steps and the mean over the steps (s-3n, s] differs from the mean over (s-6n, s-3n] by less than 10 % of
// the latter's magnitude (or not at all). Both means are over the losses that were observed, at whatever
// steps. Once ended it stays ended.
//
// Holds the losses of at most 6n steps. Thread-compatible.
class Bootstrapping {
 public:
  // Requires interval_steps (n) >= 1.
  explicit Bootstrapping(int64_t interval_steps);

  // Takes in a finite loss; one of an older step than the newest is ignored. Returns true once over.
  bool Observe(int64_t step, double loss);

  // Forgets the losses, for a training that goes on from an older step.
  void Restart();

  bool over() const { return over_; }

 private:
  struct StepLoss {
    int64_t step = 0;
    double sum = 0;
    int64_t count = 0;
  };

  const int64_t half_;  // 3n
  bool over_ = false;
  std::optional<int64_t> first_step_;
  std::deque<StepLoss> losses_;  // rising steps, those of the last 6n
};

}  // namespace egeria::policy

#endif  // EGERIA_CONTROLLER_POLICY_BOOTSTRAPPING_H_

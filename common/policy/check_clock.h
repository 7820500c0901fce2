#ifndef EGERIA_COMMON_POLICY_CHECK_CLOCK_H_
#define EGERIA_COMMON_POLICY_CHECK_CLOCK_H_

#include <cstdint>
#include <optional>

namespace egeria::policy {

// When a policy looks whether more may freeze: first at `start` of the steps, then every `every` of them. After a
// refusal it waits for two periods, after the next one for four, and so on up to `most_backoff`.
//
// Where the total is unknown it starts at the step s at which the learning rate has fallen to a hundredth of its peak,
// and one period is every / start of s, as if s were where `start` is; while the rate lies higher again, nothing is
// due. Thread-compatible.
class CheckClock {
 public:
  // total_steps 0: unknown. Requires 0 < every, 0 <= start, most_backoff >= 1.
  CheckClock(double start, double every, int most_backoff, int64_t total_steps);

  // Takes in the rate in force. Of account only where the total is unknown.
  void ObserveRate(int64_t step, double rate);

  // The step of the next check; empty while it is unknown.
  std::optional<int64_t> next() const { return Waiting() ? std::nullopt : next_; }
  bool IsDue(int64_t step) const { return !Waiting() && step >= *next_; }
  // The step of the first check, and the steps between two; empty while unknown.
  std::optional<int64_t> start() const { return start_; }
  std::optional<int64_t> period() const { return start_ ? std::optional<int64_t>(period_) : std::nullopt; }

  // How the check that was due has ended: with a freeze; without enough to judge by; with a refusal.
  void Passed(int64_t step);
  void Undecided(int64_t step) { MoveOn(step, 1); }
  void Refused(int64_t step);

  // Whatever was refused may be otherwise now: the next check is at most one period away, and refusals count anew.
  void StartOver(int64_t step);

  // Training goes on from an older step.
  void GoBack(int64_t step);

  double peak_rate() const { return peak_; }

 private:
  bool Waiting() const { return !start_ || (unknown_total_ && rate_is_high_); }
  // To the first point of the grid that is at least `periods` periods after the one that `step` has passed.
  void MoveOn(int64_t step, int64_t periods);

  const double start_fraction_;
  const double every_;
  const int64_t most_backoff_;
  const bool unknown_total_;
  std::optional<int64_t> start_;
  std::optional<int64_t> next_;
  int64_t period_ = 1;
  int64_t backoff_ = 1;
  double peak_ = 0;
  bool rate_is_high_ = true;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_CHECK_CLOCK_H_

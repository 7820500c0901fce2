#ifndef EGERIA_COMMON_POLICY_RULES_CHECK_CLOCK_H_
#define EGERIA_COMMON_POLICY_RULES_CHECK_CLOCK_H_

#include <cstdint>
#include <optional>
#include <string>

namespace egeria::policy {

// A check clock says when a policy checks whether more may freeze: first at `start` of the steps, then every `every` of
// them.
//
// Where the total is unknown the clock starts at the step s at which the learning rate has fallen to a hundredth of its
// peak. One period is then every / start of s, as if s were where `start` is. While the rate lies higher again, no
// check is due. Thread-compatible.
class CheckClock {
 public:
  // total_steps is 0 where it is unknown. Requires 0 < every and 0 <= start.
  CheckClock(double start, double every, int64_t total_steps);

  // Takes in the rate in force, which counts only where the total is unknown.
  void ObserveRate(int64_t step, double rate);

  // Returns the step of the next check; empty while it is unknown.
  std::optional<int64_t> next() const { return Waiting() ? std::nullopt : next_; }
  bool IsDue(int64_t step) const { return !Waiting() && step >= *next_; }
  // Return the step of the first check, and the steps between two; empty while unknown.
  std::optional<int64_t> start() const { return start_; }
  std::optional<int64_t> period() const { return start_ ? std::optional<int64_t>(period_) : std::nullopt; }

  // Says why nothing may freeze at `step`, as far as the clock knows; empty where its time has come.
  std::optional<std::string> TooEarly(int64_t step) const;

  // The check that was due is over: the next one comes at the next point of the grid.
  void MoveOn(int64_t step) { MoveOnBy(step, 1); }
  // Something that was frozen has turned out wrong, or somebody has unfrozen it: the next check comes a period later
  // than it would otherwise.
  void PutOff(int64_t step) { MoveOnBy(step, 2); }
  // The learning rate has changed: the next check is at most one period away.
  void StartOver(int64_t step);

 private:
  bool Waiting() const { return !start_ || (unknown_total_ && rate_is_high_); }
  // Moves to the first point of the grid that is at least `periods` periods after the one that `step` has passed.
  void MoveOnBy(int64_t step, int64_t periods);

  const double start_fraction_;
  const double every_;
  const int64_t total_steps_;
  const bool unknown_total_;
  std::optional<int64_t> start_;
  std::optional<int64_t> next_;
  int64_t period_ = 1;
  double peak_ = 0;
  double rate_ = 0;
  bool rate_is_high_ = true;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_RULES_CHECK_CLOCK_H_

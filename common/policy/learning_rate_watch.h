#ifndef EGERIA_COMMON_POLICY_LEARNING_RATE_WATCH_H_
#define EGERIA_COMMON_POLICY_LEARNING_RATE_WATCH_H_

#include <optional>

namespace egeria::policy {

// Tells when the learning rate calls for unfreezing: it fell to its value at the first freeze since all
// modules were active (the reference) divided by `drop`, or rose to its minimum since then times `rise`.
// Comparisons have a relative slack of 1e-9, so that 0.1 -> 0.01 in floating point is a tenfold drop.
// A rate of 0 is a rate, but neither a reference nor a minimum. Thread-compatible.
class LearningRateWatch {
 public:
  enum class Change { kNone, kDrop, kRise };

  // A factor of 0 switches its test off.
  LearningRateWatch(double drop, double rise) : drop_(drop), rise_(rise) {}

  // Takes in the rate in force, at least 0. Where something is frozen but no rate was known when it was
  // frozen, the first positive one becomes the reference.
  Change Observe(double rate, bool something_frozen);

  // Something is frozen now: the newest rate becomes the reference, unless there is one.
  void NoteFrozen();

  // Nothing is frozen any more: forgets the reference.
  void NoteAllActive();

  std::optional<double> reference() const { return reference_; }
  std::optional<double> minimum() const { return minimum_; }

 private:
  const double drop_;
  const double rise_;
  std::optional<double> newest_;
  std::optional<double> reference_;
  std::optional<double> minimum_;  // since the reference was taken, without zeros
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_LEARNING_RATE_WATCH_H_

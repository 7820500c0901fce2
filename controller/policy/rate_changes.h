#ifndef EGERIA_CONTROLLER_POLICY_RATE_CHANGES_H_
#define EGERIA_CONTROLLER_POLICY_RATE_CHANGES_H_

#include <optional>

namespace egeria::policy {

// Tells when the learning rate has changed so that gradients of before say nothing of those of now: it differs by more
// than 10 % from the rate that was observed before, or lies by more than 10 % over the least one since the last
// change. So a drop counts, and so does a rise, however slowly it comes; a slow decay does not, since gradients of a
// higher rate have, if anything, more signal than those of now. Thread-compatible.
class RateChanges {
 public:
  // Takes in the rate in force, at least 0. True if it has changed so; never the first time.
  bool Observe(double rate);

  std::optional<double> newest() const { return newest_; }

 private:
  std::optional<double> newest_;
  double least_ = 0;  // since the last change
};

}  // namespace egeria::policy

#endif  // EGERIA_CONTROLLER_POLICY_RATE_CHANGES_H_

#ifndef EGERIA_COMMON_POLICY_GRADNORM_POLICY_H_
#define EGERIA_COMMON_POLICY_GRADNORM_POLICY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/policy/policy.h"
#include "common/policy/policy_config.h"

namespace egeria::policy {

// This is AutoFreeze's rule (arXiv:2102.01386, section 4), for comparison: it takes for learned what changes its
// gradient norm least. After every interval t, with d_t the norm of a module's gradient over the interval,
//
//   eta = |d_t - d_(t-1)| / d_(t-1)
//
// and modules freeze from the front on as long as their eta is under the N-th percentile of the active modules' (linear
// between ranks). It never unfreezes. The paper takes the norm of the gradient accumulated over the interval; here
// d_t is the root of the mean of ||mean over the parts||^2 over the readings of the interval: single steps'
// gradients, which no worker has to add up. Thread-compatible.
class GradnormPolicy : public Policy {
 public:
  // Requires a resolved config and a shape that Resolve() takes.
  GradnormPolicy(const GradnormConfig& config, const JobShape& shape);

  std::optional<Decision> Observe(const Observation& observation) override;
  void Adopt(int64_t step, int frozen_prefix) override;
  int frozen_prefix() const override { return frozen_prefix_; }
  std::optional<GradientMonitoring> gradient_monitoring() const override;
  PolicyStatus status() const override;

 private:
  struct Sum {
    double squares = 0;
    int readings = 0;
  };

  std::optional<Decision> Check();
  void StartInterval(int64_t step);

  const GradnormConfig config_;
  const int modules_;
  int64_t step_ = 0;  // newest
  int64_t interval_end_ = 0;
  std::vector<Sum> sums_;                     // over the interval under way
  std::vector<std::optional<double>> norms_;  // over the interval before
  int frozen_prefix_ = 0;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_GRADNORM_POLICY_H_

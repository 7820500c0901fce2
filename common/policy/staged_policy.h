#ifndef EGERIA_COMMON_POLICY_STAGED_POLICY_H_
#define EGERIA_COMMON_POLICY_STAGED_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/policy/policy.h"
#include "common/policy/policy_config.h"
#include "common/policy/rules/rate_changes.h"
#include "common/policy/rules/snr_gate.h"

namespace egeria::policy {

// A staged policy is a clock: it freezes ever deeper prefixes at given parts of the training, the first of them deep
// already. With S stages,
// stage i = 1..S comes at begin + (end - begin) (i - 1) / (S - 1) of the steps, or of the area under the learning
// rates, and freezes the smallest prefix that takes (S - 1 + i) / (2 S - 1) of the time of the deepest one: of three
// stages 3/5, 4/5 and all. Where gradients are told of and clearly carry a signal, a stage is put off, or a former one
// with a shallower prefix comes in its place. Needs no reference. Thread-compatible.
class StagedPolicy : public Policy {
 public:
  // Requires a resolved config and a shape that Resolve() takes.
  StagedPolicy(const StagedConfig& config, const JobShape& shape);

  std::optional<Decision> Observe(const Observation& observation) override;
  void Adopt(int64_t step, int frozen_prefix) override;
  int frozen_prefix() const override { return frozen_prefix_; }
  std::optional<GradientMonitoring> gradient_monitoring() const override;
  // Objects only to what clearly carries a signal, where the config has the veto.
  std::optional<std::string> Objection(int prefix) const override;
  PolicyStatus status() const override;

 private:
  struct Stage {
    int64_t step = 0;
    double fraction = 0;
    int prefix = 0;
  };

  // Something speaks against a stage that is due, or nothing does.
  void PutOff(bool put_off);
  // Nothing is tried for a period of a job that begins or goes on at `step`, since nobody was asked for readings
  // before.
  int64_t RetryAfter(int64_t step) const { return config_.veto && step > 0 ? step + period_ : 0; }

  const StagedConfig config_;
  const int modules_;
  const int64_t period_;       // steps until a stage that was put off is tried again
  const int64_t first_step_;   // at which the job began
  std::vector<Stage> stages_;  // rising
  RateChanges rates_;
  SnrGate gate_;
  int64_t step_ = 0;            // newest
  int64_t retry_ = 0;           // nothing is tried before this step
  int64_t readings_from_ = -1;  // gradients of this step and before say nothing of now
  bool put_off_ = false;        // whether a stage is due and waits
  bool waited_ = false;         // whether it has waited for readings of another rate already
  size_t done_ = 0;             // stages that need not be tried any more
  int frozen_prefix_ = 0;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_STAGED_POLICY_H_

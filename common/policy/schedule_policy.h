#ifndef EGERIA_COMMON_POLICY_SCHEDULE_POLICY_H_
#define EGERIA_COMMON_POLICY_SCHEDULE_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/policy/policy.h"
#include "common/policy/policy_config.h"

namespace egeria::policy {

// Freezes given prefixes at given fractions of the training: the first observation at or after step
// ceil(fraction * total steps) sets the entry's prefix (of several that have come due, the last). Needs no
// plasticity. Thread-compatible.
class SchedulePolicy : public Policy {
 public:
  // Requires a resolved config, modules >= 2 and total_steps >= 1.
  SchedulePolicy(const ScheduleConfig& config, const JobShape& shape);

  std::optional<Decision> Observe(const Observation& observation) override;
  void Adopt(int64_t step, int frozen_prefix) override;
  int frozen_prefix() const override { return frozen_prefix_; }
  PolicyStatus status() const override;

 private:
  struct Start {
    int64_t step = 0;
    double fraction = 0;
    int frozen_prefix = 0;
  };

  const int modules_;
  const int64_t total_steps_;
  std::vector<Start> starts_;
  size_t next_ = 0;
  int64_t step_ = 0;
  int frozen_prefix_ = 0;
};

// Decides nothing. Thread-compatible.
class NonePolicy : public Policy {
 public:
  NonePolicy(const NoneConfig&, const JobShape& shape) : modules_(shape.modules) {}

  std::optional<Decision> Observe(const Observation&) override { return std::nullopt; }
  void Adopt(int64_t, int frozen_prefix) override { frozen_prefix_ = frozen_prefix; }
  int frozen_prefix() const override { return frozen_prefix_; }
  PolicyStatus status() const override;

 private:
  const int modules_;
  int frozen_prefix_ = 0;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_SCHEDULE_POLICY_H_

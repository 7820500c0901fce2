#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/strings/str_format.h"
#include "common/policy/policy_config.h"
#include "common/policy/prefix_policy.h"
#include "common/policy/training_fractions.h"

namespace egeria::policy {
namespace {

// This policy freezes given prefixes at given fractions of the training: the first observation at or after step
// ceil(fraction * total steps) sets the entry's prefix, or the last one's where several have come due. It needs no
// plasticity. Thread-compatible.
class SchedulePolicy : public PrefixPolicy {
 public:
  SchedulePolicy(const ScheduleConfig& config, const JobShape& shape)
      : PrefixPolicy(shape.modules), entries_(config.entries), total_steps_(shape.total_steps) {}

  std::optional<Decision> Observe(const Observation& observation) override {
    PassTo(observation.step);
    const ScheduleConfig::Entry* due = nullptr;
    while (next_ < entries_.size() && StepOf(entries_[next_]) <= step()) due = &entries_[next_++];
    if (due == nullptr || due->frozen_prefix == frozen_prefix()) return std::nullopt;
    return Decide(due->frozen_prefix,
                  absl::StrFormat("the schedule freezes %d of %d modules from %g %% of %d steps on", due->frozen_prefix,
                                  modules(), 100 * due->fraction, total_steps_));
  }

  void Adopt(int64_t to_step, int frozen_prefix) override {
    if (to_step < step()) next_ = 0;  // training goes on from an older checkpoint
    PrefixPolicy::Adopt(to_step, frozen_prefix);
    while (next_ < entries_.size() && StepOf(entries_[next_]) < step()) ++next_;
  }

 private:
  int64_t StepOf(const ScheduleConfig::Entry& entry) const { return StepAtFraction(entry.fraction, total_steps_); }

  const std::vector<ScheduleConfig::Entry> entries_;
  const int64_t total_steps_;
  size_t next_ = 0;  // entry that has not come due yet
};

// This policy decides nothing. Thread-compatible.
class NonePolicy : public PrefixPolicy {
 public:
  explicit NonePolicy(const JobShape& shape) : PrefixPolicy(shape.modules) {}

  std::optional<Decision> Observe(const Observation&) override { return std::nullopt; }
};

}  // namespace

std::unique_ptr<Policy> NewPolicy(const ScheduleConfig& config, const JobShape& shape) {
  return std::make_unique<SchedulePolicy>(config, shape);
}

std::unique_ptr<Policy> NewPolicy(const NoneConfig&, const JobShape& shape) {
  return std::make_unique<NonePolicy>(shape);
}

}  // namespace egeria::policy

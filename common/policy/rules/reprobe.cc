#include "common/policy/rules/reprobe.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace egeria::policy {
namespace {

constexpr int kJudgementsInARow = 2;

}  // namespace

Reprobe::Reprobe(SnrGate gate, int modules, int min_readings, int max_readings)
    : gate_(std::move(gate)),
      min_readings_(min_readings),
      max_readings_(max_readings),
      found_(static_cast<size_t>(modules)) {}

void Reprobe::Begin(int64_t step) {
  repeated_ = false;
  all_readings_ = 0;
  began_ = step;
  Collect(step);
}

void Reprobe::Collect(int64_t step) {
  running_ = true;
  from_step_ = newest_step_ = step;
  readings_ = 0;
  next_look_ = min_readings_;
  gate_.Forget();
}

void Reprobe::Stop() {
  running_ = false;
  std::fill(found_.begin(), found_.end(), 0);
}

void Reprobe::Restart(int64_t step) {
  std::fill(found_.begin(), found_.end(), 0);
  if (!running_) return;
  began_ = step;
  Collect(step);
}

std::optional<Reprobe::Finding> Reprobe::Observe(const GradientReading& reading, int frozen, int exempt,
                                                 BurdenOfProof burden) {
  if (!running_ || reading.first_module > 0 || reading.parts < 2 || reading.step <= from_step_) return std::nullopt;
  newest_step_ = reading.step;
  if (!gate_.Add(reading)) return std::nullopt;
  ++all_readings_;
  if (++readings_ < next_look_) return std::nullopt;

  if (burden == BurdenOfProof::kOnFreeze && gate_.Refusal(exempt, frozen, exempt).has_value()) {
    running_ = false;
    return Finding{std::min(exempt, frozen), std::nullopt};
  }
  const std::vector<int> over = gate_.OverThreshold(frozen, exempt);
  if (over.empty() && gate_.EstimateIsOver(frozen, exempt) && readings_ < max_readings_) {
    next_look_ = std::min(2 * next_look_, max_readings_);
    return std::nullopt;
  }
  std::optional<int> first;
  for (int module = 0; module < static_cast<int>(found_.size()); ++module) {
    int& found = found_[static_cast<size_t>(module)];
    found = std::find(over.begin(), over.end(), module) != over.end() ? found + 1 : 0;
    if (found >= kJudgementsInARow && !first) first = module;
  }
  if (!over.empty() && !first && !std::exchange(repeated_, true)) {
    Collect(reading.step);
    return std::nullopt;
  }
  running_ = false;
  return first ? std::optional<Finding>({*first, first}) : std::nullopt;
}

}  // namespace egeria::policy

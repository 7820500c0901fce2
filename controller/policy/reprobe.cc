#include "controller/policy/reprobe.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace egeria::policy {
namespace {

constexpr int kProbesInARow = 2;

}  // namespace

Reprobe::Reprobe(SnrGate gate, int modules, int readings)
    : gate_(std::move(gate)), readings_needed_(readings), found_(static_cast<size_t>(modules)) {}

void Reprobe::Begin(int64_t step) {
  repeated_ = false;
  Collect(step);
}

void Reprobe::Collect(int64_t step) {
  running_ = true;
  from_step_ = step;
  readings_ = 0;
  gate_.Forget();
}

void Reprobe::Stop() {
  running_ = false;
  std::fill(found_.begin(), found_.end(), 0);
}

void Reprobe::Restart(int64_t step) {
  std::fill(found_.begin(), found_.end(), 0);
  if (running_) Collect(step);
}

std::optional<int> Reprobe::Observe(const GradientReading& reading, int frozen, const std::vector<bool>& exempt) {
  if (!running_ || reading.first_module > 0 || reading.parts < 2 || reading.step <= from_step_) return std::nullopt;
  gate_.Add(reading);
  if (++readings_ < readings_needed_) return std::nullopt;

  const std::vector<int> over = gate_.OverThreshold(frozen, exempt);
  std::optional<int> first;
  for (int module = 0; module < static_cast<int>(found_.size()); ++module) {
    int& found = found_[static_cast<size_t>(module)];
    found = std::find(over.begin(), over.end(), module) != over.end() ? found + 1 : 0;
    if (found >= kProbesInARow && !first) first = module;
  }
  if (!over.empty() && !first && !std::exchange(repeated_, true)) {
    Collect(reading.step);
    return std::nullopt;
  }
  running_ = false;
  return first;
}

}  // namespace egeria::policy

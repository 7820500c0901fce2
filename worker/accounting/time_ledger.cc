#include "worker/accounting/time_ledger.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/status.h"

namespace egeria::worker {
namespace {

// So many times are kept for each frozen prefix; beyond it, every second one is forgotten and fewer are taken.
constexpr size_t kCapacity = 1024;
// A step that took so many times the median had something else in it: an evaluation, a checkpoint.
constexpr double kOutlier = 3.0;
// The mean time of so many steps is one that others may rely on.
constexpr int64_t kReliable = 30;
// Frozen steps may be compared with active ones once there are so many of these: the first few of a training are slow.
constexpr int64_t kEnoughActive = 10;

double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace

double TimeTotals::total_spent_seconds() const {
  double sum = 0;
  for (const auto& [what, seconds] : spent_seconds) sum += seconds;
  return sum;
}

double TimeTotals::measuring_seconds() const {
  double sum = 0;
  for (const char* what : spent_on::kMeasuring) {
    if (const auto found = spent_seconds.find(what); found != spent_seconds.end()) sum += found->second;
  }
  return sum;
}

void TimeLedger::Times::Add(double seconds) {
  if (seen_ % stride_ == 0) {
    kept_.push_back(seconds);
    mean_.reset();
    if (kept_.size() >= kCapacity) {
      for (size_t i = 0; 2 * i < kept_.size(); ++i) kept_[i] = kept_[2 * i];
      kept_.resize((kept_.size() + 1) / 2);
      stride_ *= 2;
    }
  }
  ++seen_;
  ++count_;
}

double TimeLedger::Times::Mean() const {
  if (!mean_) {
    const double highest = kOutlier * Median(kept_);
    double sum = 0;
    int64_t count = 0;
    for (const double value : kept_) {
      if (value > highest) continue;
      sum += value;
      ++count;
    }
    mean_ = sum / static_cast<double>(count);
  }
  return *mean_;
}

TimeLedger::TimeLedger() : now_(MonotonicSeconds) {}

void TimeLedger::Begin() { blocks_.push_back({now_(), 0}); }

void TimeLedger::End(const std::string& what) {
  EGERIA_CHECK(!blocks_.empty());
  const Block block = blocks_.back();
  blocks_.pop_back();
  const double seconds = now_() - block.begin;
  Add(what, seconds - block.inner);
  if (!blocks_.empty()) blocks_.back().inner += seconds;
}

void TimeLedger::Add(const std::string& what, double seconds) {
  own_ += seconds;
  spent_[what] += seconds;
  if (what == spent_on::kSwitches) switching_ += seconds;
}

void TimeLedger::BeginForward() {
  if (disturbed_ && !in_forward_ && last_) {
    last_ = now_();
    own_ = 0;
  }
  in_forward_ = true;
}

void TimeLedger::EndStep(int prefix, double share) {
  const double now = now_();
  if (last_) {
    const double seconds = std::max(0.0, now - *last_ - own_);
    Times& times = times_[prefix];
    if (disturbed_) {
      times.AddUnmeasured();
      disturbances_.push_back({prefix, seconds, std::exchange(switching_, 0)});
    } else {
      times.Add(seconds);
    }
  }
  last_ = now;
  own_ = 0;
  disturbed_ = in_forward_ = false;
  share_steps_ += share;
  ++steps_;
}

double TimeLedger::frozen_share() const { return steps_ > 0 ? share_steps_ / static_cast<double>(steps_) : 0; }

std::optional<double> TimeLedger::SavedSeconds() const {
  const auto active = times_.find(0);
  const int64_t enough = times_.size() > 1 ? kEnoughActive : 1;
  if (active == times_.end() || active->second.measured() < enough) return std::nullopt;
  double saved = 0;
  for (const auto& [prefix, times] : times_) {
    if (times.measured() > 0) saved += static_cast<double>(times.count()) * (active->second.Mean() - times.Mean());
  }
  return saved;
}

std::map<std::string, double> TimeLedger::SpentSeconds() const {
  std::map<std::string, double> spent = spent_;
  for (const auto& [what, seconds] : elsewhere_) {
    if (seconds > 0) spent[what] += seconds;
  }
  const std::map<int, double> means = SecondsPerStep();
  for (const Disturbance& disturbance : disturbances_) {
    spent[spent_on::kRecompiles] += ExcessOf(disturbance, means);
  }
  return spent;
}

double TimeLedger::ExcessOf(const Disturbance& disturbance, const std::map<int, double>& means) {
  auto usual = means.find(disturbance.prefix);
  if (usual == means.end()) usual = means.find(0);
  return usual == means.end() ? 0 : std::max(0.0, disturbance.seconds - usual->second);
}

double TimeLedger::SwitchSeconds() const {
  if (disturbances_.empty()) return compilation_;
  const std::map<int, double> means = SecondsPerStep();
  double most = 0;
  for (const Disturbance& disturbance : disturbances_) {
    most = std::max(most, disturbance.switching + ExcessOf(disturbance, means));
  }
  return most;
}

std::optional<double> TimeLedger::NetShare() const {
  const std::optional<double> saved = SavedSeconds();
  if (!saved) return std::nullopt;
  int64_t steps = 0;
  for (const auto& [prefix, times] : times_) steps += times.count();
  const double plain = times_.at(0).Mean() * static_cast<double>(steps);
  if (plain <= 0) return std::nullopt;
  return (*saved - TimeTotals{saved, SpentSeconds(), {}}.total_spent_seconds()) / plain;
}

std::map<int, double> TimeLedger::SecondsPerStep(int64_t steps) const {
  std::map<int, double> means;
  for (const auto& [prefix, times] : times_) {
    if (times.measured() >= steps) means[prefix] = times.Mean();
  }
  return means;
}

TimeTotals TimeLedger::totals() const {
  return {SavedSeconds(), SpentSeconds(), SecondsPerStep(kReliable), SwitchSeconds()};
}

}  // namespace egeria::worker

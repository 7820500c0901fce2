#include "common/policy/rules/snr_gate.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "absl/strings/str_format.h"

namespace egeria::policy {
namespace {

constexpr double kLateFrom = 2.0 / 3;  // a part of the time of all modules
constexpr double kMaxThreshold = 0.9;  // an SNR is at most 1

}  // namespace

SnrGate::SnrGate(double threshold, double late_threshold, int readings, int min_readings, std::vector<double> shares)
    : min_readings_(min_readings), estimator_(static_cast<int>(shares.size()), readings) {
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  double before = 0;
  for (const double share : shares) {
    thresholds_.push_back(before >= kLateFrom * all * (1 - 1e-9) ? late_threshold : threshold);
    before += share;
  }
}

double SnrGate::ThresholdOf(int module, double samples) const {
  const double given = thresholds_[static_cast<size_t>(module)];
  return ThresholdAtBatch(std::max(given, std::min(kMaxThreshold, factor_ * given)), samples);
}

std::string SnrGate::Judged::Text() const {
  return absl::StrFormat("%.3g (%.3g..%.3g)", snr.value, snr.lower, snr.upper);
}

std::optional<SnrGate::Judged> SnrGate::Judge(int first, int end, int exempt) const {
  std::vector<int> modules;
  for (int module = std::max(first, exempt); module < end; ++module) {
    if (HasEstimate(module)) modules.push_back(module);
  }
  const std::optional<PooledSnr> pooled = estimator_.Pooled(modules);
  if (!pooled) return std::nullopt;
  return Judged{pooled->snr, ThresholdOf(end - 1, pooled->samples)};
}

PolicyStatus SnrGate::With(PolicyStatus status) const {
  for (size_t module = 0; module < status.modules.size(); ++module) {
    const std::optional<Judged> own = Judge(static_cast<int>(module), static_cast<int>(module) + 1, 0);
    if (!own) continue;
    status.modules[module].snr = own->snr;
    status.modules[module].snr_threshold = own->threshold;
  }
  return status;
}

std::optional<std::string> SnrGate::SignalOf(int module, int exempt) const {
  const std::optional<Judged> own = Judge(module, module + 1, exempt);
  if (!own || !own->IsOver()) return std::nullopt;
  return absl::StrFormat("module %d: gradient SNR %s at the job's batch is over %.3g", module, own->Text(),
                         own->threshold);
}

std::optional<std::string> SnrGate::Refusal(int frozen, int prefix, int exempt) const {
  for (int module = exempt; module < prefix; ++module) {
    if (module >= frozen && !HasEstimate(module)) {
      return absl::StrFormat("module %d has %d gradient readings, of which %d make an estimate", module,
                             estimator_.readings(module), min_readings_);
    }
    if (auto signal = SignalOf(module, exempt)) return signal;
  }
  const std::optional<Judged> all = Judge(0, prefix, exempt);
  if (!all || all->snr.upper < all->threshold) return std::nullopt;
  return absl::StrFormat("modules 0 to %d: gradient SNR %s at the job's batch is not surely under %.3g", prefix - 1,
                         all->Text(), all->threshold);
}

std::optional<std::string> SnrGate::ClearSignal(int frozen, int prefix, int exempt) const {
  for (int module = frozen; module < prefix; ++module) {
    if (auto signal = SignalOf(module, exempt)) return signal;
  }
  const std::optional<Judged> all = Judge(frozen, prefix, exempt);
  if (!all || !all->IsOver()) return std::nullopt;
  return absl::StrFormat("modules %d to %d: gradient SNR %s at the job's batch is over %.3g", frozen, prefix - 1,
                         all->Text(), all->threshold);
}

std::string SnrGate::Describe(int prefix, int exempt) const {
  const std::optional<Judged> all = Judge(0, prefix, exempt);
  return all ? all->Text() : "";
}

}  // namespace egeria::policy

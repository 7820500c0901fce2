#include "common/policy/training_fractions.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "common/base/status.h"

namespace egeria::policy {
namespace {

constexpr int64_t kReadingsPerPeriod = 50;
constexpr int64_t kMinInterval = 2;
constexpr int64_t kMinIntervalOfOneRank = 20;
constexpr int64_t kMaxPeriodsAhead = 4;
constexpr int64_t kMaxInterval = 100'000;
constexpr double kMinPromised = 0.05;  // part of a step's time

// A fall from one point of the plan to the next is no sudden drop up to this part of the peak; more where there are few
// points.
constexpr double kSuddenDrop = 0.1;

}  // namespace

int64_t StepAtFraction(double fraction, int64_t total_steps) {
  const double exact = fraction * static_cast<double>(total_steps);
  return static_cast<int64_t>(std::ceil(exact * (1 - 1e-12)));
}

int64_t StepsOfPart(double part, double steps) { return std::max<int64_t>(1, std::llround(part * steps)); }

bool HaveArea(const std::vector<double>& rates) {
  return rates.size() >= 2 &&
         std::all_of(rates.begin(), rates.end(), [](double rate) { return std::isfinite(rate) && rate >= 0; }) &&
         std::any_of(rates.begin(), rates.end(), [](double rate) { return rate > 0; });
}

bool FallSmoothly(const std::vector<double>& rates) {
  if (!HaveArea(rates)) return false;
  const double peak = *std::max_element(rates.begin(), rates.end());
  const double max_fall = peak * std::max(kSuddenDrop, 3.0 / static_cast<double>(rates.size() - 1));
  for (size_t i = 1; i < rates.size(); ++i) {
    if (rates[i - 1] - rates[i] > max_fall) return false;
  }
  return true;
}

double AreaUntil(double points, const std::vector<double>& rates) {
  double area = 0;
  for (size_t i = 0; i + 1 < rates.size() && static_cast<double>(i) < points; ++i) {
    const double part = std::min(1.0, points - static_cast<double>(i));
    area += part * (rates[i] + (rates[i + 1] - rates[i]) * part / 2);
  }
  return area;
}

int64_t StepAtArea(double fraction, const std::vector<double>& rates, int64_t total_steps) {
  EGERIA_CHECK(HaveArea(rates) && total_steps >= 1);
  const double pieces = static_cast<double>(rates.size() - 1);
  const double wanted = fraction * AreaUntil(pieces, rates);
  double before = 0;
  for (size_t i = 0; i + 1 < rates.size(); ++i) {
    const double area = (rates[i] + rates[i + 1]) / 2;
    if (before + area < wanted * (1 - 1e-12)) {
      before += area;
      continue;
    }
    // Within the piece the area grows as a x + (b - a) x^2 / 2 over x in 0..1.
    const double a = rates[i], slope = rates[i + 1] - rates[i], rest = wanted - before;
    double x = 0;
    if (rest > 0) {
      const double root = std::sqrt(std::max(0.0, a * a + 2 * slope * rest));
      x = a + root > 0 ? std::min(1.0, 2 * rest / (a + root)) : 1;
    }
    return StepAtFraction((static_cast<double>(i) + x) / pieces, total_steps);
  }
  return total_steps;
}

std::vector<double> TimeSharesOf(const JobShape& shape) {
  const std::vector<double>& told = shape.step_shares;
  const bool known = told.size() == static_cast<size_t>(shape.modules) &&
                     std::any_of(told.begin(), told.end(), [](double share) { return share > 0; });
  return known ? told : std::vector<double>(static_cast<size_t>(shape.modules), 1.0 / shape.modules);
}

int SmallestPrefixReaching(double amount, const std::vector<double>& shares) {
  double sum = 0;
  const int last = static_cast<int>(shares.size()) - 1;
  for (int prefix = 1; prefix < last; ++prefix) {
    sum += shares[static_cast<size_t>(prefix - 1)];
    if (sum >= amount * (1 - 1e-9)) return prefix;
  }
  return last;
}

int PrefixNearestTo(double amount, const std::vector<double>& shares) {
  const int reaching = SmallestPrefixReaching(amount, shares);
  const int before = std::max(1, reaching - 1);
  const double above = ShareOfPrefix(reaching, shares) - amount;
  const double below = amount - ShareOfPrefix(before, shares);
  return below <= above * (1 + 1e-9) ? before : reaching;
}

double ShareOfPrefix(int prefix, const std::vector<double>& shares) {
  return std::accumulate(shares.begin(), shares.begin() + prefix, 0.0);
}

std::optional<double> RealisedSaving(const Account& account, const std::vector<double>& shares) {
  const auto modules = static_cast<int>(shares.size());
  const int prefix = account.frozen_prefix;
  if (account.frozen_step_seconds <= 0 || prefix <= 0 || prefix >= modules) return std::nullopt;
  const double active = account.active_step_seconds, promised = ShareOfPrefix(prefix, shares);
  if (active <= 0 || promised < kMinPromised) return std::nullopt;
  return std::max(0.0, active - account.frozen_step_seconds) / (active * promised);
}

int GradientInterval(int64_t period, const JobShape& shape) {
  const int64_t min_interval = shape.ranks == 1 ? kMinIntervalOfOneRank : kMinInterval;
  return static_cast<int>(std::clamp(period / kReadingsPerPeriod, min_interval, kMaxInterval));
}

int64_t GradientLead(int interval, int readings, int min_readings, int64_t period) {
  // Steps go by until the workers have been told, and until the last reading has come: so it is some more.
  const int64_t max_lead = std::max(int64_t{min_readings + min_readings / 4} * interval, kMaxPeriodsAhead * period);
  return std::min(int64_t{readings} * interval, max_lead);
}

}  // namespace egeria::policy

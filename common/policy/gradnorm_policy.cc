#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/policy/policy_config.h"
#include "common/policy/prefix_policy.h"

namespace egeria::policy {
namespace {

constexpr double kMaxSquare = 1e200;

// Returns the percentile of values, which are not empty, linear between ranks.
double Percentile(std::vector<double> values, double percent) {
  std::sort(values.begin(), values.end());
  const double rank = percent / 100 * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(rank);
  if (below + 1 >= values.size()) return values.back();
  const double share = rank - static_cast<double>(below);
  return share == 0 ? values[below] : values[below] + share * (values[below + 1] - values[below]);
}

// This is AutoFreeze's rule (arXiv:2102.01386, section 4), for comparison: it takes for learned what changes its
// gradient norm least. After every interval t, with d_t the norm of a module's gradient over the interval,
//
//   eta = |d_t - d_(t-1)| / d_(t-1)
//
// and modules freeze from the front on as long as their eta is under the N-th percentile of the active modules' (linear
// between ranks). It never unfreezes. The paper takes the norm of the gradient accumulated over the interval. Here d_t
// is the root of the mean of ||mean over the parts||^2 over the readings of the interval. These are single steps'
// gradients, which no worker has to add up. Thread-compatible.
class GradnormPolicy : public PrefixPolicy {
 public:
  GradnormPolicy(const GradnormConfig& config, const JobShape& shape)
      : PrefixPolicy(shape.modules),
        config_(config),
        sums_(static_cast<size_t>(shape.modules)),
        norms_(static_cast<size_t>(shape.modules)) {
    StartInterval(shape.first_step);
  }

  std::optional<Decision> Observe(const Observation& observation) override {
    PassTo(observation.step);
    if (observation.gradients) Add(*observation.gradients);
    return step() >= interval_end_ ? Check() : std::nullopt;
  }

  void Adopt(int64_t to_step, int frozen_prefix) override {
    PrefixPolicy::Adopt(to_step, frozen_prefix);
    std::fill(norms_.begin(), norms_.end(), std::nullopt);
    StartInterval(to_step);
  }

  std::optional<GradientMonitoring> gradient_monitoring() const override {
    if (AllFrozen()) return std::nullopt;
    return GradientMonitoring{config_.interval_steps, frozen_prefix()};
  }

 private:
  struct Sum {
    double squares = 0;
    int readings = 0;
  };

  void StartInterval(int64_t from_step) {
    interval_end_ = from_step + config_.check_steps;
    std::fill(sums_.begin(), sums_.end(), Sum());
  }

  void Add(const GradientReading& reading) {
    for (size_t i = 0; i < reading.square_of_mean.size(); ++i) {
      const size_t module = static_cast<size_t>(reading.first_module) + i;
      const double square = reading.square_of_mean[i];
      if (module >= sums_.size() || !(square >= 0 && square <= kMaxSquare)) continue;
      sums_[module].squares += square;
      sums_[module].readings += 1;
    }
  }

  std::optional<Decision> Check() {
    const int front = frozen_prefix();
    // An interval without readings is not compared; the norms before it stand.
    if (!std::all_of(sums_.begin() + front, sums_.end(), [](const Sum& sum) { return sum.readings > 0; })) {
      interval_end_ = step() + config_.check_steps;
      return std::nullopt;
    }
    const std::vector<double> changes = ChangesFrom(static_cast<size_t>(front));
    StartInterval(step());
    if (changes.size() < static_cast<size_t>(modules() - front)) return std::nullopt;  // the first interval

    const double bar = Percentile(changes, config_.percentile);
    int prefix = front;
    while (prefix < modules() - 1 && changes[static_cast<size_t>(prefix - front)] < bar) ++prefix;
    if (prefix == front) return std::nullopt;
    return Decide(prefix, absl::StrFormat("modules %d to %d: gradient norms have changed by less than %.3g over %d "
                                          "steps, the %g. percentile of the active modules",
                                          front, prefix - 1, bar, config_.check_steps, config_.percentile));
  }

  // Returns eta of each module from `front` on that has a norm of the interval before, and takes the new norms over.
  std::vector<double> ChangesFrom(size_t front) {
    std::vector<double> changes;
    for (size_t module = front; module < sums_.size(); ++module) {
      const double norm = std::sqrt(sums_[module].squares / sums_[module].readings);
      const std::optional<double> before = norms_[module];
      norms_[module] = norm;
      if (!before) continue;
      changes.push_back(norm == *before ? 0
                        : *before > 0   ? std::abs(norm - *before) / *before
                                        : std::numeric_limits<double>::max());
    }
    return changes;
  }

  const GradnormConfig config_;
  int64_t interval_end_ = 0;
  std::vector<Sum> sums_;                     // over the interval under way
  std::vector<std::optional<double>> norms_;  // over the interval before
};

}  // namespace

std::unique_ptr<Policy> NewPolicy(const GradnormConfig& config, const JobShape& shape) {
  return std::make_unique<GradnormPolicy>(config, shape);
}

}  // namespace egeria::policy

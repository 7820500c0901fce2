#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plasticity/smoothing.h"
#include "common/policy/bootstrapping.h"
#include "common/policy/policy_config.h"
#include "common/policy/prefix_policy.h"

namespace egeria::policy {
namespace {

constexpr int kMinWindow = 3;
constexpr double kMaxMagnitude = 1e100;
constexpr int kInitialSlopes = 3;

bool IsUsable(const std::optional<double>& value) {
  return value && std::abs(*value) <= kMaxMagnitude;  // false for NaN
}

// A history holds the readings of one module since it became frontmost, and tests whether its plasticity is stationary
// (paper, Algorithm 1). Thread-compatible.
//
// Each reading is smoothed by the mean of the last W; from the second on, the least-squares slope of the last
// W smoothed values is taken. The threshold is the tolerance times the largest |slope| among the first three
// slopes. From the fourth on, a slope under the threshold counts one (|slope|, or the slope itself where
// `signed_slope`), any other restarts the count at 0. A slope of exactly 0 counts whatever the threshold:
// where the first three slopes are 0 nothing could be under it.
class ModuleHistory {
 public:
  ModuleHistory(int window, double tolerance, bool signed_slope)
      : window_(window),
        tolerance_(tolerance),
        signed_slope_(signed_slope),
        readings_(static_cast<size_t>(window)),
        smoothed_(static_cast<size_t>(window)) {}

  // Takes in a finite reading. Returns true when W slopes in a row have counted.
  bool Add(double plasticity) {
    readings_.Add(plasticity);
    smoothed_.Add(readings_.Mean());
    status_.plasticity = plasticity;
    status_.readings += 1;
    status_.slope = smoothed_.Slope();
    if (!status_.slope) return false;

    const double slope = *status_.slope;
    if (initial_slopes_ < kInitialSlopes) {
      initial_slopes_ += 1;
      initial_slope_ = std::max(initial_slope_, std::abs(slope));
      if (initial_slopes_ == kInitialSlopes) status_.threshold = tolerance_ * initial_slope_;
      return false;
    }
    const double compared = signed_slope_ ? slope : std::abs(slope);
    const bool counts = compared < *status_.threshold || slope == 0;
    status_.consecutive = counts ? status_.consecutive + 1 : 0;
    return status_.consecutive >= window_;
  }

  const ModuleStatus& status() const { return status_; }
  // Returns the largest |slope| among the first three (so far).
  double initial_slope() const { return initial_slope_; }

 private:
  const int window_;
  const double tolerance_;
  const bool signed_slope_;
  plasticity::Window readings_;
  plasticity::Window smoothed_;
  int initial_slopes_ = 0;
  double initial_slope_ = 0;
  ModuleStatus status_;
};

// The watch tells when the learning rate calls for unfreezing. The rate at the first freeze since all modules were
// active is the reference. Modules unfreeze when the rate has fallen to the reference divided by `drop`, or has risen
// to its minimum since then times `rise`. Comparisons have a relative slack of 1e-9, so that 0.1 -> 0.01 in floating
// point is a tenfold drop. A rate of 0 is a rate, but neither a reference nor a minimum. Thread-compatible.
class LearningRateWatch {
 public:
  // A factor of 0 switches its test off.
  LearningRateWatch(double drop, double rise) : drop_(drop), rise_(rise) {}

  // Takes in the rate in force, at least 0. Where something is frozen but no rate was known when it was frozen, the
  // first positive one becomes the reference.
  void Observe(double rate, bool something_frozen) {
    newest_ = rate;
    dropped_ = risen_ = false;
    if (!something_frozen) return;
    if (!reference_) return NoteFrozen();
    dropped_ = drop_ > 0 && rate <= *reference_ / drop_ * (1 + kRateSlack);
    risen_ = !dropped_ && rise_ > 0 && rate >= *minimum_ * rise_ * (1 - kRateSlack);
    if (!dropped_ && !risen_ && rate > 0) minimum_ = std::min(*minimum_, rate);
  }

  // Something is frozen now: the newest rate becomes the reference, unless there is one.
  void NoteFrozen() {
    if (reference_ || !newest_ || *newest_ <= 0) return;
    reference_ = minimum_ = newest_;
  }

  // Nothing is frozen any more: forgets the reference.
  void NoteAllActive() {
    reference_.reset();
    minimum_.reset();
  }

  // Whether the newest rate calls for unfreezing; the reference and the minimum are known then.
  bool dropped() const { return dropped_; }
  bool risen() const { return risen_; }
  double reference() const { return *reference_; }
  double minimum() const { return *minimum_; }

 private:
  const double drop_;
  const double rise_;
  bool dropped_ = false;
  bool risen_ = false;
  std::optional<double> newest_;
  std::optional<double> reference_;
  std::optional<double> minimum_;  // since the reference was taken, without zeros
};

// This policy is the paper's rule (section 4.2, Algorithm 1), on whichever metric. It freezes the frontmost active
// module when its plasticity has become stationary, and unfreezes all when the learning rate has dropped. The equations
// are in docs/internals/plasticity.md, which also settles what the paper leaves open.
//
// An observation is evaluated in the order learning rate, unfreeze steps, loss (or, in a job that reports none, the
// step), plasticity. A number that is not finite, or over 1e100 in magnitude (of which sums could become infinite), is
// as if not observed; so is a negative learning rate. A plasticity without a module is the frontmost one's.
// Thread-compatible.
class PlasticityPolicy : public PrefixPolicy {
 public:
  PlasticityPolicy(const PlasticityConfig& config, const JobShape& shape, plasticity::ActivationMetric metric)
      : PrefixPolicy(shape.modules),
        config_(config),
        metric_(metric),
        window_(config.window),
        bootstrapping_(shape.losses_reported ? Bootstrapping(config.interval_steps)
                                             : Bootstrapping::WithoutLosses(config.interval_steps, shape.first_step)),
        learning_rate_(config.learning_rate_drop, config.learning_rate_rise),
        module_status_(static_cast<size_t>(shape.modules)) {
    StartHistory();
  }

  std::optional<Decision> Observe(const Observation& observation) override {
    PassTo(observation.step);
    std::optional<Decision> decision;
    if (IsUsable(observation.learning_rate) && *observation.learning_rate >= 0) {
      decision = ObserveLearningRate(*observation.learning_rate);
    }
    if (std::optional<Decision> passed = PassUnfreezeSteps()) decision = std::move(passed);
    if (IsUsable(observation.loss) && observation.step >= 0 && wants_loss()) {
      bootstrapping_.Observe(observation.step, *observation.loss);
    }
    bootstrapping_.Pass(observation.step);
    const bool of_frontmost = observation.module.value_or(frozen_prefix()) == frozen_prefix();
    if (IsUsable(observation.plasticity) && of_frontmost && !bootstrapping()) {
      // After an unfreeze this is the first reading of a fresh history, which cannot freeze.
      if (auto freeze = ObservePlasticity(*observation.plasticity)) decision = std::move(freeze);
    }
    return decision;
  }

  void Adopt(int64_t to_step, int prefix) override {
    if (to_step < step()) {  // training goes on from an older checkpoint: the steps between come once more
      bootstrapping_.Restart();
      next_unfreeze_ = 0;
    }
    // An unfreeze that was due before this step had its effect on the prefix that is adopted.
    const std::vector<int64_t>& steps = config_.unfreeze_steps;
    while (next_unfreeze_ < steps.size() && steps[next_unfreeze_] < to_step) ++next_unfreeze_;
    KeepStatus();
    PrefixPolicy::Adopt(to_step, prefix);
    StartHistory();
    std::fill(module_status_.begin() + prefix, module_status_.end(), ModuleStatus());
    if (prefix > 0) {
      learning_rate_.NoteFrozen();
    } else {
      learning_rate_.NoteAllActive();
    }
  }

  std::optional<Monitoring> monitoring() const override {
    if (bootstrapping() || AllFrozen()) return std::nullopt;
    return Monitoring{frozen_prefix(), config_.interval_steps, config_.batch_size, window_, metric_};
  }

  bool wants_loss() const override { return config_.bootstrap && bootstrapping_.wants_loss(); }
  std::optional<int64_t> awaited_step() const override {
    return config_.bootstrap ? bootstrapping_.awaited_step() : std::nullopt;
  }

  PolicyStatus status() const override {
    PolicyStatus status;
    status.bootstrapping = bootstrapping();
    status.modules = module_status_;
    status.modules[static_cast<size_t>(frozen_prefix())] = history_->status();
    return status;
  }

 private:
  bool bootstrapping() const { return config_.bootstrap && !bootstrapping_.over(); }

  std::optional<Decision> ObserveLearningRate(double rate) {
    learning_rate_.Observe(rate, frozen_prefix() > 0);
    if (learning_rate_.dropped()) {
      const int window_before = std::exchange(window_, std::max(kMinWindow, window_ / 2));
      return UnfreezeAll(absl::StrFormat(
          "learning rate %.4g is at or under 1/%g of the %.4g at the first freeze: all modules unfreeze, window %d -> "
          "%d",
          rate, config_.learning_rate_drop, learning_rate_.reference(), window_before, window_));
    }
    if (!learning_rate_.risen()) return std::nullopt;
    return UnfreezeAll(absl::StrFormat(
        "learning rate %.4g is at or over %g times its minimum of %.4g since the first freeze: all modules unfreeze",
        rate, config_.learning_rate_rise, learning_rate_.minimum()));
  }

  std::optional<Decision> PassUnfreezeSteps() {
    const std::vector<int64_t>& steps = config_.unfreeze_steps;
    std::optional<int64_t> passed;
    while (next_unfreeze_ < steps.size() && steps[next_unfreeze_] <= step()) passed = steps[next_unfreeze_++];
    if (!passed || frozen_prefix() == 0) return std::nullopt;
    return UnfreezeAll(absl::StrCat("step ", *passed, " is a given unfreeze step: all modules unfreeze"));
  }

  std::optional<Decision> ObservePlasticity(double plasticity) {
    if (!history_->Add(plasticity) || AllFrozen()) return std::nullopt;
    const ModuleStatus& status = history_->status();
    std::string reason = absl::StrFormat("module %d: %s %.3g under %g %% of the initial %.3g for %d readings",
                                         frozen_prefix(), config_.signed_slope ? "slope" : "|slope|",
                                         config_.signed_slope ? *status.slope : std::abs(*status.slope),
                                         100 * config_.tolerance, history_->initial_slope(), status.consecutive);
    KeepStatus();
    StartHistory();
    learning_rate_.NoteFrozen();
    return Decide(frozen_prefix() + 1, std::move(reason));
  }

  Decision UnfreezeAll(std::string reason) {
    StartHistory();
    module_status_.assign(module_status_.size(), ModuleStatus());
    learning_rate_.NoteAllActive();
    return Decide(0, std::move(reason));
  }

  void StartHistory() { history_.emplace(window_, config_.tolerance, config_.signed_slope); }
  void KeepStatus() { module_status_[static_cast<size_t>(frozen_prefix())] = history_->status(); }

  const PlasticityConfig config_;
  const plasticity::ActivationMetric metric_;
  int window_;  // W, halved by each drop of the learning rate
  Bootstrapping bootstrapping_;
  LearningRateWatch learning_rate_;
  size_t next_unfreeze_ = 0;                 // index into config_.unfreeze_steps
  std::optional<ModuleHistory> history_;     // the frontmost module's
  std::vector<ModuleStatus> module_status_;  // frozen modules are as they were when they froze
};

}  // namespace

std::unique_ptr<Policy> NewPolicy(const PlasticityConfig& config, const JobShape& shape) {
  return std::make_unique<PlasticityPolicy>(config, shape, plasticity::ActivationMetric::kSpLoss);
}

std::unique_ptr<Policy> NewPolicy(const ActnormConfig& config, const JobShape& shape) {
  return std::make_unique<PlasticityPolicy>(config, shape, plasticity::ActivationMetric::kActivationNorm);
}

}  // namespace egeria::policy

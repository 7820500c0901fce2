#include "controller/job/observation_filter.h"

#include <algorithm>
#include <cmath>

#include "common/base/status.h"
#include "common/policy/constants.h"
#include "controller/job/registration.h"

namespace egeria::controller {
namespace {

constexpr double kLearningRateChange = 0.01;
constexpr int64_t kTicksPerJob = 1'000;
constexpr size_t kLongestText = 1'000;  // bytes, of a cache's state and reason
constexpr int64_t kAccountsPerJob = 50;
constexpr int64_t kTickStepsWhereTotalIsUnknown = 50;

int64_t TickSteps(const JobState& state) {
  const int64_t total = state.registration().total_steps();
  return total > 0 ? std::max<int64_t>(1, total / kTicksPerJob) : kTickStepsWhereTotalIsUnknown;
}

}  // namespace

absl::Status ValidateHeartbeat(const v1::Heartbeat& heartbeat, int modules) {
  const v1::LossRun& losses = heartbeat.losses();
  if (losses.values_size() > kMaxLossesPerHeartbeat ||
      heartbeat.learning_rates_size() > kMaxLearningRatesPerHeartbeat) {
    return NamedError(absl::StatusCode::kResourceExhausted, "HEARTBEAT_TOO_LARGE", losses.values_size(),
                      " losses (at most ", kMaxLossesPerHeartbeat, "), ", heartbeat.learning_rates_size(),
                      " learning rates (at most ", kMaxLearningRatesPerHeartbeat, ")");
  }
  auto bad = [](const auto&... what) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", "a heartbeat with ", what...);
  };
  if (!CanBeStep(heartbeat.step())) return bad("step ", heartbeat.step());
  if (heartbeat.plan_watermark() < 0 || heartbeat.applied_plan() < 0) return bad("a negative plan");
  if (heartbeat.frozen_prefix() < 0 || heartbeat.frozen_prefix() >= modules) {
    return bad("frozen prefix ", heartbeat.frozen_prefix(), " of ", modules, " modules");
  }
  if (heartbeat.zero_lr_prefix() < 0 || heartbeat.zero_lr_prefix() >= modules) {
    return bad(heartbeat.zero_lr_prefix(), " of ", modules, " modules that do not change");
  }
  if (heartbeat.frozen_by_script() < 0 || heartbeat.frozen_by_script() >= modules) {
    return bad(heartbeat.frozen_by_script(), " of ", modules, " modules that the script has frozen");
  }
  if (losses.values_size() > 0 &&
      (losses.first_step() < 0 || losses.first_step() > heartbeat.step() - losses.values_size() + 1)) {
    return bad("losses of ", losses.values_size(), " steps from ", losses.first_step(), " on at step ",
               heartbeat.step());
  }
  if (const v1::CacheReport& cache = heartbeat.cache(); heartbeat.has_cache()) {
    if (cache.state().size() > kLongestText || cache.reason().size() > kLongestText) return bad("a long text");
    if (cache.hits() < 0 || cache.computed() < 0 || cache.bytes_read() < 0 || !std::isfinite(cache.saved_seconds())) {
      return bad("a cache's numbers that cannot be");
    }
  }
  if (heartbeat.has_account()) {
    const v1::Account& account = heartbeat.account();
    if (!std::isfinite(account.saved_seconds())) return bad("an account that is not finite");
    for (const double seconds : {account.spent_seconds(), account.active_step_seconds(), account.frozen_step_seconds(),
                                 account.measuring_seconds(), account.switch_seconds()}) {
      if (!std::isfinite(seconds) || seconds < 0) return bad("an account with ", seconds, " seconds");
    }
    if (account.frozen_prefix() < 0 || account.frozen_prefix() >= modules) {
      return bad("an account of frozen prefix ", account.frozen_prefix(), " of ", modules, " modules");
    }
  }
  return absl::OkStatus();
}

void ObservationFilter::Reset() {
  learning_rate_.reset();
  last_loss_step_ = -1;
  newest_loss_step_ = -1;
  last_heartbeat_step_ = -1;
  last_account_step_ = -1;
  last_account_prefix_ = 0;
}

int64_t ObservationFilter::LossWatermark(const JobState& state) const {
  const int64_t looked_at = std::max(last_loss_step_, state.last_loss_step());
  const int64_t watermark = state.policy().wants_loss() ? looked_at : std::max(looked_at, last_heartbeat_step_);
  return std::max<int64_t>(0, watermark);
}

bool ObservationFilter::LossIsFinite(const v1::Heartbeat& heartbeat, const JobState& state) {
  const auto& losses = heartbeat.losses().values();
  const int64_t newest = heartbeat.losses().first_step() + losses.size() - 1;
  if (losses.empty() || newest <= newest_loss_step_)
    return state.loss_is_finite();  // after a reconnect they come again
  newest_loss_step_ = newest;
  return std::isfinite(*losses.rbegin());
}

bool ObservationFilter::LearningRateIsNews(double rate, const JobState& state) const {
  const std::optional<double> recorded = state.last_learning_rate();
  if (!recorded) return true;
  if (rate == *recorded) return false;
  if (std::abs(rate - *recorded) >= kLearningRateChange * std::abs(*recorded)) return true;
  return learning_rate_ == rate;  // the rate has come to rest
}

std::optional<double> ObservationFilter::ScheduledRate(const v1::Heartbeat& heartbeat) {
  const auto& rates = heartbeat.learning_rates();
  if (rates.empty()) return std::nullopt;
  const double rate = followed_rate_.Of({rates.data(), static_cast<size_t>(rates.size())});
  return std::isfinite(rate) ? std::optional<double>(rate) : std::nullopt;
}

std::vector<v1::Observation> ObservationFilter::Take(const v1::Heartbeat& heartbeat, const JobState& state) {
  std::vector<v1::Observation> taken;
  const int64_t floor = state.last_step();
  last_heartbeat_step_ = std::max(last_heartbeat_step_, heartbeat.step());
  if (state.policy().wants_loss() && heartbeat.losses().values_size() > 0) {
    const int64_t seen = std::max(last_loss_step_, state.last_loss_step());
    int64_t step = heartbeat.losses().first_step();
    for (float loss : heartbeat.losses().values()) {
      if (step > seen && std::isfinite(loss)) {
        v1::Observation& observation = taken.emplace_back();
        observation.set_step(std::max(step, floor));
        observation.set_loss(loss);
      }
      ++step;
    }
    last_loss_step_ = std::max(seen, step - 1);
  }
  const int64_t now = std::max(heartbeat.step(), floor);
  auto observation_of_now = [&]() -> v1::Observation& {
    if (taken.empty() || taken.back().step() != now) taken.emplace_back().set_step(now);
    return taken.back();
  };
  const bool finite = LossIsFinite(heartbeat, state);
  if (finite != state.loss_is_finite()) observation_of_now().set_loss_is_finite(finite);
  const bool policy_sees = !state.paused() && finite;
  if (const std::optional<double> rate = ScheduledRate(heartbeat)) {
    if (policy_sees && LearningRateIsNews(*rate, state)) observation_of_now().set_learning_rate(*rate);
    learning_rate_ = rate;
  }
  const bool tells_zero_lr_prefix =
      heartbeat.has_zero_lr_prefix() && heartbeat.zero_lr_prefix() != state.last_zero_lr_prefix();
  if (policy_sees && tells_zero_lr_prefix) {
    observation_of_now().set_zero_lr_prefix(heartbeat.zero_lr_prefix());
  }
  if (policy_sees && heartbeat.has_frozen_by_script() && heartbeat.frozen_by_script() != state.frozen_by_script()) {
    observation_of_now().set_frozen_by_script(heartbeat.frozen_by_script());
  }
  const int64_t account_steps = std::max<int64_t>(1, state.registration().total_steps() / kAccountsPerJob);
  const bool account_is_due = last_account_step_ < 0 || now - last_account_step_ >= account_steps ||
                              heartbeat.account().frozen_prefix() != last_account_prefix_;
  if (heartbeat.has_account() && state.policy().wants_account() && state.mode() == v1::MODE_ACT && policy_sees &&
      account_is_due) {
    *observation_of_now().mutable_account() = heartbeat.account();
    last_account_step_ = now;
    last_account_prefix_ = heartbeat.account().frozen_prefix();
  }
  const policy::PolicyConfig& config = state.policy_config();
  if (taken.empty() && policy::KindOf(config).acts_at_steps(config) && now - floor >= TickSteps(state)) {
    observation_of_now();
  }
  // A policy that is paused, or held by a loss that is not finite, would not see the step, and would still await it.
  const std::optional<int64_t> awaited = state.policy().awaited_step();
  if (awaited && now >= *awaited && policy_sees) observation_of_now();
  return taken;
}

}  // namespace egeria::controller

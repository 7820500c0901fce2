#include "controller/job/gradient_requests.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/status.h"
#include "controller/job/registration.h"

namespace egeria::controller {
namespace {

constexpr int kMaxParts = 65'536;

template <typename... Args>
absl::Status Bad(const Args&... what) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_GRADIENTS", what...);
}

template <typename... Args>
absl::Status Stale(const Args&... what) {
  return NamedError(absl::StatusCode::kFailedPrecondition, "STALE_REQUEST", what...);
}

}  // namespace

absl::Status CheckGradients(const v1::GradientReading& reading, int modules) {
  if (!CanBeStep(reading.step()) || reading.samples() < 0) {
    return Bad("gradients of ", reading.samples(), " samples at step ", reading.step());
  }
  if (reading.parts() < 1 || reading.parts() > kMaxParts) return Bad("gradients in ", reading.parts(), " parts");
  if (reading.first_module() < 0 || reading.first_module() >= modules) {
    return Bad("gradients from module ", reading.first_module(), " on, of ", modules);
  }
  const int told = modules - reading.first_module();
  if (reading.mean_of_squares_size() != told || reading.square_of_mean_size() != told) {
    return Bad("gradients of ", reading.mean_of_squares_size(), " and ", reading.square_of_mean_size(),
               " modules, where those from ", reading.first_module(), " on are ", told);
  }
  if (reading.progress_size() != 0 && reading.progress_size() != told) {
    return Bad("progress of ", reading.progress_size(), " modules, where those told of are ", told);
  }
  if (std::any_of(reading.progress().begin(), reading.progress().end(), [](double p) { return !std::isfinite(p); })) {
    return NamedError(absl::StatusCode::kInvalidArgument, "GRADIENTS_NOT_FINITE",
                      "progress that is not finite, at step ", reading.step());
  }
  for (const auto* values : {&reading.mean_of_squares(), &reading.square_of_mean()}) {
    for (const double value : *values) {
      if (!std::isfinite(value)) {
        return NamedError(absl::StatusCode::kInvalidArgument, "GRADIENTS_NOT_FINITE", "a square of ", value,
                          " at step ", reading.step());
      }
      if (value < 0 && values == &reading.mean_of_squares()) return Bad("a square of ", value);
    }
  }
  return absl::OkStatus();
}

bool GradientRequests::Update(const std::optional<policy::GradientMonitoring>& wanted, int64_t generation,
                              absl::Time now) {
  if (generation != generation_) last_step_ = -1;  // it may have gone back to an older step
  const bool same =
      generation == std::exchange(generation_, generation) && wanted.has_value() == wanted_.has_value() &&
      (!wanted || (wanted->interval_steps == wanted_->interval_steps && wanted->first_module == wanted_->first_module));
  if (same) return false;
  const bool silent = !wanted && !wanted_;
  wanted_ = wanted;
  if (wanted_) version_ = std::max(version_ + 1, absl::ToUnixMicros(now));
  return !silent;
}

std::optional<v1::GradientRequest> GradientRequests::request() const {
  if (!wanted_) return std::nullopt;
  v1::GradientRequest request;
  request.set_interval_steps(wanted_->interval_steps);
  request.set_first_module(wanted_->first_module);
  request.set_version(version_);
  return request;
}

absl::Status GradientRequests::Check(const v1::GradientReading& reading) const {
  if (!wanted_) return Stale("no gradients are wanted");
  if (reading.request_version() != version_ || reading.first_module() != wanted_->first_module) {
    return Stale("gradients from module ", wanted_->first_module, " on, version ", version_,
                 ", are wanted, not from module ", reading.first_module(), " on, version ", reading.request_version());
  }
  if (reading.step() <= last_step_) return Stale("step ", reading.step(), " has been told of already");
  return absl::OkStatus();
}

}  // namespace egeria::controller

#include "common/reference/reference_chain.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/reference/tensor_bridge.h"
#include "common/thread/thread.h"

namespace egeria::reference {
namespace {

// With this share of 8-bit values at the end of their range, the ranges are out of date.
constexpr double kMaxSaturatedShare = 1e-3;

absl::Status Failed(const std::string& why) { return NamedError(absl::StatusCode::kInternal, "REFERENCE_FAILED", why); }

}  // namespace

ReferenceChain::ReferenceChain(std::vector<std::shared_ptr<ReferenceModule>> modules,
                               const std::vector<std::unique_ptr<Backend>>* backends,
                               plasticity::ActivationMetric metric, SelectionOptions options, ChainLimits limits)
    : modules_(std::move(modules)),
      backends_(backends),
      metric_(metric),
      limits_(limits),
      baseline_(MakeAtenBackend()),
      selector_(options) {}

const Backend* ReferenceChain::Find(const std::string& name) const {
  for (const auto& backend : *backends_) {
    if (backend->name() == name) return backend.get();
  }
  return baseline_.get();
}

bool ReferenceChain::IsSaturated() const {
  return std::any_of(modules_.begin(), modules_.end(),
                     [](const auto& module) { return module->saturated_share() > kMaxSaturatedShare; });
}

namespace {

// Takes from the outputs the part that the metric compares.
absl::StatusOr<std::vector<float>> ComparedOf(const std::vector<at::Tensor>& outputs, int64_t batch,
                                              plasticity::ActivationMetric metric) {
  try {
    const c10::InferenceMode inference;
    if (outputs[0].dim() < 1 || outputs[0].size(0) != batch) {
      return Failed("the module's first output is not batched like its inputs");
    }
    if (!outputs[0].is_floating_point()) return Failed("the module's first output is not floating-point");
    const at::Tensor compared = metric == plasticity::ActivationMetric::kSpLoss
                                    ? GramMatrix(outputs[0])
                                    : outputs[0].to(at::kFloat).contiguous();
    const float* data = compared.const_data_ptr<float>();
    std::vector<float> values(data, data + compared.numel());
    if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) {
      return Failed("the reference's output is not finite");
    }
    return values;
  } catch (...) {
    return StatusOfCurrentException("the output of a reference");
  }
}

}  // namespace

absl::StatusOr<std::vector<float>> ReferenceChain::Run(const Backend& backend, const std::vector<at::Tensor>& inputs,
                                                       int64_t batch) {
  std::vector<at::Tensor> values = inputs;
  for (const auto& module : modules_) {
    EGERIA_ASSIGN_OR_RETURN(values, module->Run(backend, values));
  }
  return ComparedOf(values, batch, metric_);
}

absl::StatusOr<std::vector<float>> ReferenceChain::Calibrate(const std::vector<at::Tensor>& inputs, int64_t batch) {
  std::vector<at::Tensor> values = inputs;
  for (const auto& module : modules_) {
    EGERIA_ASSIGN_OR_RETURN(values, module->Calibrate(values));
  }
  return ComparedOf(values, batch, metric_);
}

BackendMeasurement ReferenceChain::Measure(const Backend& backend, const std::vector<at::Tensor>& inputs,
                                           std::span<const float> baseline, int64_t batch) {
  BackendMeasurement measurement{.name = backend.name()};
  const auto refuse = [&](const absl::Status& status) {
    measurement.refusal = std::string(status.message());
    return measurement;
  };
  // The first run packs and compiles kernels; the shorter of two more is the time. It is the time of
  // this thread, since at idle priority on a busy machine the wall clock tells nothing about a backend.
  absl::StatusOr<std::vector<float>> output = Run(backend, inputs, batch);
  if (!output.ok()) return refuse(output.status());
  const absl::StatusOr<double> noise = plasticity::Distance(metric_, *output, baseline, batch);
  if (!noise.ok()) return refuse(noise.status());
  measurement.noise = *noise;
  measurement.seconds = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 2; ++i) {
    const absl::Duration start = ThreadCpuTime();
    output = Run(backend, inputs, batch);
    if (!output.ok()) return refuse(output.status());
    const absl::Duration taken = ThreadCpuTime() - start;
    measurement.seconds = std::min(measurement.seconds, absl::ToDoubleSeconds(taken));
  }
  return measurement;
}

// `baseline_time`: what the baseline has just taken.
std::vector<BackendMeasurement> ReferenceChain::MeasureAll(const std::vector<at::Tensor>& inputs,
                                                           std::span<const float> baseline, int64_t batch,
                                                           absl::Duration baseline_time) {
  const absl::Duration start = ThreadCpuTime();
  std::vector<BackendMeasurement> measurements;
  for (const auto& backend : *backends_) {
    if (backend->name() == baseline_->name()) continue;
    if (baseline_time + ThreadCpuTime() - start > limits_.max_trial_time) {
      measurements.push_back({.name = backend->name(), .refusal = "the module takes too long for a trial"});
      continue;
    }
    measurements.push_back(Measure(*backend, inputs, baseline, batch));
  }
  if (baseline_time + ThreadCpuTime() - start > limits_.max_trial_time) {
    measurements.push_back({.name = baseline_->name(), .seconds = absl::ToDoubleSeconds(baseline_time)});
  } else {
    measurements.push_back(Measure(*baseline_, inputs, baseline, batch));
  }
  return measurements;
}

absl::StatusOr<ChainReading> ReferenceChain::EvaluateAndCalibrate(const std::vector<at::Tensor>& inputs,
                                                                  std::span<const float> training, int64_t batch) {
  const absl::Duration start = ThreadCpuTime();
  EGERIA_ASSIGN_OR_RETURN(const std::vector<float> baseline, Calibrate(inputs, batch));
  const absl::Duration baseline_time = ThreadCpuTime() - start;
  EGERIA_ASSIGN_OR_RETURN(const double plasticity, plasticity::Distance(metric_, training, baseline, batch));
  calibrated_ = true;
  if (selector_.NeedsMeasurement()) {
    selector_.SetMeasurements(MeasureAll(inputs, baseline, batch, baseline_time));
    for (const BackendMeasurement& m : selector_.measurements()) {
      LogDebug("reference backend ", m.name, ": ", m.seconds * 1e3, " ms, noise ", m.noise,
               m.refusal.empty() ? "" : ", refused: ", m.refusal);
    }
  } else if (const std::string chosen = selector_.Choose(); chosen != baseline_->name()) {
    const absl::StatusOr<std::vector<float>> quantised = Run(*Find(chosen), inputs, batch);
    const absl::StatusOr<double> noise =
        quantised.ok() ? plasticity::Distance(metric_, *quantised, baseline, batch) : quantised.status();
    if (noise.ok()) {
      selector_.UpdateNoise(chosen, *noise);
    } else {
      selector_.Refuse(chosen, std::string(noise.status().message()));
    }
  }
  return ChainReading{plasticity, baseline_->family()};
}

absl::StatusOr<ChainReading> ReferenceChain::Evaluate(const std::vector<at::Tensor>& inputs,
                                                      std::span<const float> training, int64_t batch) {
  if (!calibrated_ || selector_.NeedsMeasurement() || IsSaturated()) {
    absl::StatusOr<ChainReading> reading = EvaluateAndCalibrate(inputs, training, batch);
    if (reading.ok()) selector_.AddReading(reading->plasticity);
    return reading;
  }
  const Backend* backend = Find(selector_.Choose());
  absl::StatusOr<std::vector<float>> reference = Run(*backend, inputs, batch);
  if (!reference.ok() && backend != baseline_.get()) {
    // The baseline may succeed where one backend fails: fall back, and leave the backend until it is measured
    // anew.
    selector_.Refuse(backend->name(), std::string(reference.status().message()));
    backend = baseline_.get();
    reference = Run(*backend, inputs, batch);
  }
  if (!reference.ok()) return reference.status();
  EGERIA_ASSIGN_OR_RETURN(const double plasticity, plasticity::Distance(metric_, training, *reference, batch));
  selector_.AddReading(plasticity);
  return ChainReading{plasticity, backend->family()};
}

}  // namespace egeria::reference

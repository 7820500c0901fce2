#ifndef EGERIA_COMMON_REFERENCE_REFERENCE_CHAIN_H_
#define EGERIA_COMMON_REFERENCE_REFERENCE_CHAIN_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/plasticity/activation_metric.h"
#include "common/reference/reference_module.h"
#include "common/reference/selection.h"

namespace egeria::reference {

struct ChainReading {
  double plasticity = 0;
  std::string family;  // the family of the backend that was used
};

struct ChainLimits {
  // Processor time after which no further backend is tried. The baseline, which needs no trial, is used then, unless
  // one that was tried is faster.
  absl::Duration max_trial_time = absl::InfiniteDuration();
};

// Consecutive modules that are evaluated one after the other, usually one, and the choice of the backend that
// they share. The first sample after a snapshot goes through the float32 baseline, which calibrates 8-bit
// ranges and tells each candidate's noise on the job's own data; later ones go through the chosen backend.
// Owned by the evaluator's thread.
class ReferenceChain {
 public:
  // `backends` outlive the chain; they are candidates beside the baseline, which need not be among them.
  ReferenceChain(std::vector<std::shared_ptr<ReferenceModule>> modules,
                 const std::vector<std::unique_ptr<Backend>>* backends,
                 plasticity::ActivationMetric metric = plasticity::ActivationMetric::kSpLoss,
                 SelectionOptions options = {}, ChainLimits limits = {});

  // A module of the chain has new weights: the next sample recalibrates.
  void WeightsChanged() { calibrated_ = false; }

  // The distance between training's output and the chain's first one. `training`: what the metric compares, the Gram
  // matrix (b x b) or the output (b x d), row-major; batch: b.
  // Errors: those of ReferenceModule::Run() and plasticity::Distance(); INTERNAL [REFERENCE_FAILED] where the chain's
  // output has another batch or is not finite.
  absl::StatusOr<ChainReading> Evaluate(const std::vector<at::Tensor>& inputs, std::span<const float> training,
                                        int64_t batch);

  plasticity::ActivationMetric metric() const { return metric_; }
  const BackendSelector& selector() const { return selector_; }
  const std::vector<std::shared_ptr<ReferenceModule>>& modules() const { return modules_; }

 private:
  // Runs the chain, and returns the part of its output that the metric compares.
  absl::StatusOr<std::vector<float>> Run(const Backend& backend, const std::vector<at::Tensor>& inputs, int64_t batch);
  // The same through the baseline, which calibrates 8-bit ranges.
  absl::StatusOr<std::vector<float>> Calibrate(const std::vector<at::Tensor>& inputs, int64_t batch);
  BackendMeasurement Measure(const Backend& backend, const std::vector<at::Tensor>& inputs,
                             std::span<const float> baseline, int64_t batch);
  std::vector<BackendMeasurement> MeasureAll(const std::vector<at::Tensor>& inputs, std::span<const float> baseline,
                                             int64_t batch, absl::Duration baseline_time);
  absl::StatusOr<ChainReading> EvaluateAndCalibrate(const std::vector<at::Tensor>& inputs,
                                                    std::span<const float> training, int64_t batch);
  const Backend* Find(const std::string& name) const;
  bool IsSaturated() const;

  const std::vector<std::shared_ptr<ReferenceModule>> modules_;
  const std::vector<std::unique_ptr<Backend>>* const backends_;
  const plasticity::ActivationMetric metric_;
  const ChainLimits limits_;
  const std::unique_ptr<Backend> baseline_;
  BackendSelector selector_;
  bool calibrated_ = false;
};

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_REFERENCE_CHAIN_H_

#include "common/reference/reference_module.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/item.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/reference/tensor_bridge.h"
#include "common/tensor/torch_types.h"

namespace egeria::reference {
namespace {

void Widen(const c10::IValue& value, ActivationRange* range) {
  if (!value.isTensor()) return;
  const at::Tensor& tensor = value.toTensor();
  if (tensor.scalar_type() != at::kFloat || tensor.numel() == 0) return;
  const auto [low, high] = at::aminmax(tensor);
  const float smallest = low.item<float>(), largest = high.item<float>();
  if (!std::isfinite(smallest) || !std::isfinite(largest)) return;
  range->low = std::min(range->low, smallest);
  range->high = std::max(range->high, largest);
}

}  // namespace

absl::StatusOr<std::shared_ptr<ReferenceModule>> ReferenceModule::Create(const graph::ModuleGraph& graph,
                                                                         const RunLimits& limits) {
  EGERIA_ASSIGN_OR_RETURN(std::shared_ptr<const BoundGraph> bound, Bind(graph));
  return std::shared_ptr<ReferenceModule>(new ReferenceModule(graph, Lower(std::move(bound)), limits));
}

ReferenceModule::ReferenceModule(const graph::ModuleGraph& graph, LoweredGraph lowered, const RunLimits& limits)
    : graph_(graph), lowered_(std::move(lowered)), limits_(limits), baseline_(MakeAtenBackend()) {
  ranges_.resize(lowered_.graph->slots());
  calibrated_slots_.resize(lowered_.graph->slots(), false);
  for (const auto& item : lowered_.items) {
    const auto* group = std::get_if<FusedGroup>(&item);
    if (group == nullptr) continue;
    calibrated_slots_[group->input] = calibrated_slots_[group->output] = true;
    if (group->residual >= 0) calibrated_slots_[group->residual] = true;
  }
}

void ReferenceModule::SetWeights(std::vector<WireTensor> weights) {
  const c10::InferenceMode inference;
  weights_.clear();
  for (const WireTensor& weight : weights) weights_.push_back(ToTensor(weight));
  programs_.clear();
  has_weights_ = true;
}

absl::Status ReferenceModule::CheckInputs(const std::vector<at::Tensor>& inputs) const {
  const auto failed = [](const auto&... message) {
    return NamedError(absl::StatusCode::kInternal, "REFERENCE_FAILED", message...);
  };
  if (inputs.size() != graph_.inputs.size()) {
    return failed("the module takes ", graph_.inputs.size(), " inputs and was given ", inputs.size());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorSpec& spec = graph_.inputs[i];
    bool fits = inputs[i].scalar_type() == ToScalarType(spec.dtype) &&
                inputs[i].dim() == static_cast<int64_t>(spec.shape.size());
    for (size_t j = 0; fits && j < spec.shape.size(); ++j) {
      fits = spec.shape[j] == -1 || spec.shape[j] == inputs[i].size(static_cast<int64_t>(j));
    }
    if (!fits) {
      return failed("input '", spec.name, "' is [", absl::StrJoin(inputs[i].sizes(), ","), "], the graph says [",
                    absl::StrJoin(spec.shape, ","), "]");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<const Program*> ReferenceModule::ProgramOf(const Backend& backend) {
  if (!has_weights_) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "NO_REFERENCE", "the module has no weights yet");
  }
  auto found = programs_.find(backend.name());
  if (found == programs_.end()) {
    if (saturation_ == nullptr) saturation_ = std::make_shared<SaturationCount>();
    const PackInput input{.graph = &lowered_, .weights = weights_, .ranges = &ranges_, .saturation = saturation_};
    found = programs_.emplace(backend.name(), backend.Pack(input)).first;
  }
  if (!found->second.ok()) return found->second.status();
  return &*found->second;
}

absl::StatusOr<std::vector<at::Tensor>> ReferenceModule::Run(const Backend& backend,
                                                             const std::vector<at::Tensor>& inputs) {
  EGERIA_RETURN_IF_ERROR(CheckInputs(inputs));
  EGERIA_ASSIGN_OR_RETURN(const Program* program, ProgramOf(backend));
  return RunProgram(*program, inputs, limits_);
}

absl::StatusOr<std::vector<at::Tensor>> ReferenceModule::Calibrate(const std::vector<at::Tensor>& inputs) {
  EGERIA_RETURN_IF_ERROR(CheckInputs(inputs));
  EGERIA_ASSIGN_OR_RETURN(const Program* program, ProgramOf(*baseline_));
  auto outputs = RunProgram(*program, inputs, limits_, [this](int slot, const c10::IValue& value) {
    if (calibrated_slots_[slot]) Widen(value, &ranges_[slot]);
  });
  if (!outputs.ok()) return outputs.status();
  std::erase_if(programs_, [this](const auto& entry) { return entry.first != baseline_->name(); });
  saturation_ = std::make_shared<SaturationCount>();
  return outputs;
}

double ReferenceModule::saturated_share() const {
  if (saturation_ == nullptr || saturation_->elements == 0) return 0;
  return static_cast<double>(saturation_->saturated) / static_cast<double>(saturation_->elements);
}

}  // namespace egeria::reference

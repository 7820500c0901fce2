#include <ATen/ops/add.h>
#include <ATen/ops/relu.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/reference/backend.h"
#include "common/reference/onednn_ops.h"
#include "common/reference/tensor_bridge.h"

namespace egeria::reference {
namespace {

struct PointwiseOps {
  OperatorCall reorder_convolution{"mkldnn::_reorder_convolution_weight", ""};
  OperatorCall reorder_linear{"mkldnn::_reorder_linear_weight", ""};
  OperatorCall convolution{"mkldnn::_convolution_pointwise", ""};
  OperatorCall convolution_add{"mkldnn::_convolution_pointwise", "binary"};
  OperatorCall linear{"mkldnn::_linear_pointwise", ""};

  static const PointwiseOps& Get() {
    static const auto* const ops = new PointwiseOps;
    return *ops;
  }
  absl::Status Check() const {
    return CheckAvailable({&reorder_convolution, &reorder_linear, &convolution, &convolution_add, &linear});
  }
};

// A group with its weights in oneDNN's layout.
struct PackedGroup {
  FusedGroup group;
  std::vector<int64_t> weight_shape;
  at::Tensor weight, bias;
  at::ScalarType type = at::kFloat;
};

at::Tensor Convolve(const PackedGroup& packed, const Frame& frame) {
  const PointwiseOps& ops = PointwiseOps::Get();
  const FusedGroup& group = packed.group;
  at::Tensor input = frame[group.input].toTensor();
  const std::vector<int64_t> shape = CheckConvolutionInput(group, packed.weight_shape, input);
  input = input.to(packed.type).contiguous(at::MemoryFormat::ChannelsLast);
  const auto plain = [&](const char* activation) {
    return ops.convolution(input, packed.weight, OptionalTensor(packed.bias), IntList(group.padding),
                           IntList(group.stride), IntList(group.dilation), group.groups, std::string(activation),
                           ScalarList(ActivationScalars(group)), c10::IValue());
  };
  if (group.residual < 0) return plain(ActivationName(group));
  const at::Tensor residual = frame[group.residual].toTensor();
  if (residual.sizes() != shape || residual.scalar_type() != packed.type) {  // broadcast or promoted: not for oneDNN
    at::Tensor sum = at::add(plain("none"), residual);
    return group.activation == Activation::kRelu ? at::relu(sum) : sum;
  }
  return ops.convolution_add(input, residual.contiguous(at::MemoryFormat::ChannelsLast), packed.weight,
                             OptionalTensor(packed.bias), IntList(group.padding), IntList(group.stride),
                             IntList(group.dilation), group.groups, std::string("add"), c10::IValue(1.0),
                             group.activation == Activation::kNone ? c10::IValue() : c10::IValue(std::string("relu")),
                             ScalarList({}), c10::IValue());
}

at::Tensor Linear(const PackedGroup& packed, const Frame& frame) {
  const FusedGroup& group = packed.group;
  const at::Tensor input = frame[group.input].toTensor();
  CheckLinearInput(packed.weight_shape, input);
  return PointwiseOps::Get().linear(input.to(packed.type), packed.weight, OptionalTensor(packed.bias),
                                    std::string(ActivationName(group)), ScalarList({}),
                                    group.gelu.empty() ? c10::IValue() : c10::IValue(group.gelu));
}

PackedGroup PackGroup(const FusedGroup& group, const Frame& weights, at::ScalarType type) {
  const PointwiseOps& ops = PointwiseOps::Get();
  const FoldedWeights folded = Fold(group, weights);
  PackedGroup packed{.group = group, .weight_shape = folded.weight.sizes().vec(), .type = type};
  if (folded.bias.defined()) packed.bias = folded.bias.to(type);
  const at::Tensor weight = folded.weight.to(type);
  packed.weight = group.convolution ? ops.reorder_convolution(weight.contiguous(at::MemoryFormat::ChannelsLast),
                                                              IntList(group.padding), IntList(group.stride),
                                                              IntList(group.dilation), group.groups, c10::IValue())
                                    : ops.reorder_linear(weight.contiguous(), c10::IValue());
  return packed;
}

class PointwiseBackend final : public Backend {
 public:
  PointwiseBackend(std::string name, at::ScalarType type) : name_(std::move(name)), type_(type) {}
  const std::string& name() const override { return name_; }
  const std::string& family() const override { return name_; }

  absl::StatusOr<Program> Pack(const PackInput& input) const override {
    EGERIA_RETURN_IF_ERROR(PointwiseOps::Get().Check());
    if (type_ == at::kBFloat16 && !HasBfloat16()) {
      return absl::UnimplementedError(
          "bfloat16 needs a processor with avx512bw, avx512vl and avx512dq, or with avx_ne_convert");
    }
    if (input.graph->fused == 0) return absl::UnimplementedError("nothing in the module can be fused");
    try {
      const c10::InferenceMode inference;
      return PackOrThrow(input);
    } catch (...) {
      return StatusOfCurrentException(name_);
    }
  }

 private:
  Program PackOrThrow(const PackInput& input) const {
    Program program = MakeProgram(input);
    for (const auto& item : input.graph->items) {
      const auto* group = std::get_if<FusedGroup>(&item);
      if (group == nullptr) {
        program.steps.push_back(MakeLoweredStep(input.graph->graph->nodes[std::get<size_t>(item)], nullptr));
        continue;
      }
      Step step{.label = group->convolution ? name_ + " convolution" : name_ + " linear",
                .reads = {group->input},
                .writes = {group->output}};
      if (group->residual >= 0) step.reads.push_back(group->residual);
      step.run = [packed = PackGroup(*group, program.initial, type_)](Frame& frame) {
        frame[packed.group.output] = packed.group.convolution ? Convolve(packed, frame) : Linear(packed, frame);
      };
      program.steps.push_back(std::move(step));
    }
    if (type_ != at::kFloat) Convert(input, &program);
    program.FindDeadValues();
    return program;
  }

  // Inputs, weights and constants of the plain steps, too, so that types do not promote back to float32.
  void Convert(const PackInput& input, Program* program) const {
    for (c10::IValue& value : program->initial) {
      if (value.isTensor() && value.toTensor().scalar_type() == at::kFloat) value = value.toTensor().to(type_);
    }
    std::vector<Step> steps;
    for (size_t i = 0; i < program->inputs.size(); ++i) {
      if (input.graph->graph->input_specs[i].dtype != DataType::kFloat32) continue;
      const int slot = program->inputs[i];
      steps.push_back({.label = "to " + name_, .reads = {slot}, .writes = {slot}, .run = [slot](Frame& frame) {
                         frame[slot] = frame[slot].toTensor().to(at::kBFloat16);
                       }});
    }
    for (Step& step : program->steps) steps.push_back(std::move(step));
    for (int slot : program->outputs) {
      steps.push_back({.label = "to float32", .reads = {slot}, .writes = {slot}, .run = [slot](Frame& frame) {
                         const at::Tensor value = frame[slot].toTensor();
                         if (value.scalar_type() == at::kBFloat16) frame[slot] = value.to(at::kFloat);
                       }});
    }
    program->steps = std::move(steps);
  }

  const std::string name_;
  const at::ScalarType type_;
};

}  // namespace

std::unique_ptr<Backend> MakePrepackedBackend() { return std::make_unique<PointwiseBackend>("prepacked", at::kFloat); }
std::unique_ptr<Backend> MakeBfloat16Backend() { return std::make_unique<PointwiseBackend>("bf16", at::kBFloat16); }

}  // namespace egeria::reference

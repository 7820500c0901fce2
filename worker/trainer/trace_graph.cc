#include "worker/trainer/trace_graph.h"

#include <exception>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/allclose.h"
#include "ATen/ops/linspace.h"
#include "ATen/ops/zeros.h"
#include "common/base/status.h"
#include "common/tensor/torch_types.h"
#include "torch/csrc/jit/frontend/tracer.h"
#include "torch/csrc/jit/ir/constants.h"
#include "torch/csrc/jit/passes/dead_code_elimination.h"
#include "torch/csrc/jit/runtime/graph_executor.h"
#include "worker/commit/torch_status.h"

namespace egeria::trainer {
namespace {

using graph::Argument;
using graph::ArgumentList;
using graph::ValueRef;
using worker::LayerModule;
using worker::NamedTensor;
namespace jit = torch::jit;

constexpr const char* kInput = "input";

template <typename... Args>
absl::Status CannotTrace(const Args&... message) {
  return NamedError(absl::StatusCode::kUnimplemented, "CANNOT_TRACE", message...);
}

// Parameters do not ask for gradients while this lives: a trace refuses constants that do.
class NoParameterGradients {
 public:
  explicit NoParameterGradients(const LayerModule& module) {
    for (const NamedTensor& parameter : module.parameters()) {
      if (!parameter.tensor.requires_grad()) continue;
      changed_.push_back(parameter.tensor);
      parameter.tensor.set_requires_grad(false);
    }
  }
  ~NoParameterGradients() {
    for (const at::Tensor& parameter : changed_) parameter.set_requires_grad(true);
  }
  NoParameterGradients(const NoParameterGradients&) = delete;
  NoParameterGradients& operator=(const NoParameterGradients&) = delete;

 private:
  std::vector<at::Tensor> changed_;
};

// Numbers of the same type and trailing shape as `like`, drawn from no generator, so that the random state of
// training stays as it was.
at::Tensor Ramp(const at::Tensor& like, int64_t batch) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape[0] = batch;
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return at::linspace(-1.5, 2.5, count, like.options()).view(shape);
}

// Turns the nodes of a traced graph into those of a ModuleGraph.
class Translator {
 public:
  explicit Translator(const LayerModule& module) {
    for (const NamedTensor& parameter : module.parameters()) AddWeight(parameter);
    for (const NamedTensor& buffer : module.buffers()) AddWeight(buffer);
  }

  absl::StatusOr<TracedModule> Translate(const jit::Graph& traced, const at::Tensor& input) {
    if (traced.inputs().size() != 1 || traced.outputs().size() != 1) {
      return CannotTrace("a layer module has one tensor in and one out");
    }
    std::vector<int64_t> shape = input.sizes().vec();
    shape[0] = -1;
    result_.graph.inputs = {{kInput, ToDataType(input.scalar_type()), shape}};
    names_[traced.inputs()[0]] = kInput;
    for (const jit::Node* node : traced.nodes()) EGERIA_RETURN_IF_ERROR(AddNode(*node));
    const auto output = names_.find(traced.outputs()[0]);
    if (output == names_.end()) return CannotTrace("the output is not computed from the input");
    result_.graph.outputs = {output->second};
    EGERIA_RETURN_IF_ERROR(graph::Validate(result_.graph));
    return std::move(result_);
  }

 private:
  void AddWeight(const NamedTensor& weight) { weights_.emplace(weight.tensor.const_data_ptr(), weight); }

  absl::Status AddNode(const jit::Node& node) {
    if (node.kind() == c10::prim::Constant || node.kind() == c10::prim::ListConstruct) {
      return absl::OkStatus();  // taken in where they are used
    }
    const c10::FunctionSchema* const schema = node.maybeSchema();
    if (schema == nullptr || !node.kind().is_aten()) return CannotTrace("no words for ", node.kind().toQualString());
    graph::Node made;
    made.op = schema->name();
    made.overload = schema->overload_name();
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      const c10::Argument& formal = schema->arguments()[i];
      const bool is_dtype = formal.real_type()->str().find("ScalarType") != std::string::npos;
      absl::StatusOr<Argument> argument = Convert(node.inputs()[i], is_dtype);
      if (!argument.ok()) return CannotTrace(schema->name(), ": ", argument.status().message());
      if (formal.kwarg_only()) {
        made.kwargs[formal.name()] = *std::move(argument);
      } else {
        made.args.push_back(*std::move(argument));
      }
    }
    if (IsIdentity(node)) {
      names_[node.outputs()[0]] = std::get<ValueRef>(made.args[0].kind).name;
      return absl::OkStatus();
    }
    Canonicalise(node, &made);
    for (const jit::Value* value : node.outputs()) {
      made.outputs.push_back(absl::StrCat("v", next_value_++));
      names_[value] = made.outputs.back();
    }
    result_.graph.nodes.push_back(std::move(made));
    return absl::OkStatus();
  }

  // Dropout does nothing in eval mode.
  static bool IsIdentity(const jit::Node& node) {
    return node.kind() == c10::aten::dropout || node.kind() == c10::aten::feature_dropout;
  }

  // The tracer records a convolution by its inner operator; the graph speaks of conv2d, as exported ones do.
  static void Canonicalise(const jit::Node& node, graph::Node* made) {
    if (node.kind() != c10::aten::_convolution || made->args.size() < 9) return;
    const auto weight = jit::toIValue(node.inputs()[1]);
    const bool* const transposed = std::get_if<bool>(&made->args[6].kind);
    if (!weight.has_value() || weight->toTensor().dim() != 4 || transposed == nullptr || *transposed) return;
    made->op = "aten::conv2d";
    made->overload = "";
    const std::vector<Argument> old = std::move(made->args);
    made->args = {old[0], old[1], old[2], old[3], old[4], old[5], old[8]};
  }

  absl::StatusOr<Argument> Convert(const jit::Value* value, bool is_dtype) {
    if (const auto name = names_.find(value); name != names_.end()) return Argument{ValueRef{name->second}};
    if (value->node()->kind() == c10::prim::ListConstruct) {
      ArgumentList list;
      for (const jit::Value* item : value->node()->inputs()) {
        EGERIA_ASSIGN_OR_RETURN(Argument argument, Convert(item, false));
        list.push_back(std::move(argument));
      }
      return Argument{std::move(list)};
    }
    const std::optional<c10::IValue> constant = jit::toIValue(value);
    if (!constant.has_value()) return CannotTrace("a value that comes from ", value->node()->kind().toQualString());
    return ConvertConstant(*constant, is_dtype);
  }

  absl::StatusOr<Argument> ConvertConstant(const c10::IValue& constant, bool is_dtype) {
    if (constant.isNone()) return Argument{graph::None{}};
    if (constant.isTensor()) return WeightNamed(constant.toTensor());
    if (is_dtype && constant.isInt()) {
      const DataType dtype = ToDataType(static_cast<at::ScalarType>(constant.toInt()));
      if (dtype == DataType::kUnspecified) return CannotTrace("an element type that cannot be sent");
      return Argument{dtype};
    }
    if (constant.isBool()) return Argument{constant.toBool()};
    if (constant.isInt()) return Argument{constant.toInt()};
    if (constant.isDouble()) return Argument{constant.toDouble()};
    if (constant.isString()) return Argument{constant.toStringRef()};
    if (constant.isList()) {
      ArgumentList list;
      for (const c10::IValue& item : constant.toListRef()) {
        EGERIA_ASSIGN_OR_RETURN(Argument argument, ConvertConstant(item, false));
        list.push_back(std::move(argument));
      }
      return Argument{std::move(list)};
    }
    return CannotTrace("a constant of type ", constant.tagKind());
  }

  absl::StatusOr<Argument> WeightNamed(const at::Tensor& tensor) {
    const auto weight = weights_.find(tensor.const_data_ptr());
    if (weight == weights_.end() || weight->second.tensor.sizes() != tensor.sizes()) {
      return CannotTrace("a tensor of ", tensor.numel(), " numbers that is neither parameter nor buffer");
    }
    const NamedTensor& named = weight->second;
    if (weight_used_.emplace(named.name, true).second) {
      result_.graph.weights.push_back({named.name, ToDataType(named.tensor.scalar_type()), named.tensor.sizes().vec()});
      result_.weights.push_back(named);
    }
    return Argument{ValueRef{named.name}};
  }

  std::unordered_map<const void*, NamedTensor> weights_;
  std::map<std::string, bool> weight_used_;
  std::unordered_map<const jit::Value*, std::string> names_;
  int next_value_ = 0;
  TracedModule result_;
};

}  // namespace

absl::StatusOr<TracedModule> TraceModule(const LayerModule& module, const at::Tensor& input) {
  if (!input.defined() || input.dim() < 1) return CannotTrace("its input is not known");
  try {
    at::NoGradGuard no_gradients;
    worker::EvalModeGuard eval(module.blocks());
    NoParameterGradients frozen(module);
    auto run = [&module](jit::Stack stack) { return jit::Stack{module.Run(stack[0].toTensor())}; };
    const std::shared_ptr<jit::Graph> traced =
        jit::tracer::trace(
            {c10::IValue(Ramp(input, input.size(0)))}, run, [](const at::Tensor&) { return std::string(); },
            /*strict=*/true, /*force_outplace=*/true)
            .first->graph;
    jit::EliminateDeadCode(traced);
    EGERIA_ASSIGN_OR_RETURN(TracedModule result, Translator(module).Translate(*traced, input));

    const at::Tensor other = Ramp(input, 2 * input.size(0) + 1);
    jit::Stack stack = {other};
    jit::GraphExecutor(traced, module.name()).run(stack);
    const at::Tensor expected = module.Run(other);
    const at::Tensor actual = stack[0].toTensor();
    if (actual.sizes() != expected.sizes() || !at::allclose(actual, expected, 1e-4, 1e-5)) {
      return CannotTrace(
          "it computes something else at another batch size: a size that it reads is a constant in "
          "the recording");
    }
    return result;
  } catch (const std::exception& error) {
    const std::string text = worker::MessageOf(error);
    return CannotTrace(text.substr(0, text.find('\n')));
  }
}

at::Tensor OutputShapedLike(const LayerModule& module, const at::Tensor& input) {
  try {
    at::NoGradGuard no_gradients;
    worker::EvalModeGuard eval(module.blocks());
    const at::Tensor output = module.Run(input);
    return at::zeros(output.sizes(), output.options());
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace egeria::trainer

#include "common/reference/binding.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/reference/tensor_bridge.h"
#include "common/tensor/torch_types.h"

namespace egeria::reference {
namespace {

using c10::TypeKind;
using graph::Argument;

template <typename... Args>
absl::Status BadArgument(const Args&... message) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_ARGUMENT", message...);
}

// The rest of a sentence that names the argument, for BadArgument().
template <typename... Args>
absl::Status Misfit(const Args&... rest) {
  return absl::InvalidArgumentError(absl::StrCat(rest...));
}

bool IsInteger(TypeKind kind) { return kind == TypeKind::IntType || kind == TypeKind::SymIntType; }

// Arguments that decide whether an operator is a pure function, and the only value that makes it one.
struct Requirement {
  const char* op;
  const char* argument;
  c10::IValue value;
};
const std::vector<Requirement>& Requirements() {
  static const auto* const requirements = new std::vector<Requirement>{
      {"aten::dropout", "train", false},
      {"aten::feature_dropout", "train", false},
      {"aten::batch_norm", "training", false},
      {"aten::scaled_dot_product_attention", "dropout_p", 0.0},
      {"aten::scaled_dot_product_attention", "enable_gqa", false},
  };
  return *requirements;
}

class Binder {
 public:
  absl::StatusOr<std::shared_ptr<const BoundGraph>> Run(const graph::ModuleGraph& graph) {
    bound_->input_specs = graph.inputs;
    bound_->weight_specs = graph.weights;
    for (const TensorSpec& spec : graph.inputs) bound_->inputs.push_back(Define(spec.name, Tensor()));
    for (const TensorSpec& spec : graph.weights) bound_->weights.push_back(Define(spec.name, Tensor()));
    for (const graph::Node& node : graph.nodes) {
      if (node.outputs.empty()) continue;  // dead
      EGERIA_RETURN_IF_ERROR(graph::IsOwnOperator(node.op) ? BindOwn(node) : BindOperator(node));
    }
    for (const std::string& name : graph.outputs) {
      const int slot = slots_.at(name);
      if (bound_->types[slot]->kind() != TypeKind::TensorType) {
        return BadArgument("output '", name, "' is no tensor");
      }
      bound_->outputs.push_back(slot);
    }
    return std::shared_ptr<const BoundGraph>(std::move(bound_));
  }

 private:
  static c10::TypePtr Tensor() { return c10::TensorType::get(); }

  int AddSlot(c10::TypePtr type) {
    bound_->types.push_back(std::move(type));
    return bound_->slots() - 1;
  }
  int Define(const std::string& name, c10::TypePtr type) {
    const int slot = AddSlot(std::move(type));
    slots_.emplace(name, slot);
    return slot;
  }

  absl::Status BindOperator(const graph::Node& node) {
    BoundNode bound{.name = node.op, .overload = node.overload};
    bound.op = c10::Dispatcher::singleton().findSchema({node.op, node.overload});
    if (!bound.op.has_value()) {
      return NamedError(absl::StatusCode::kInvalidArgument, "UNKNOWN_OP", node.op, ".", node.overload,
                        " is not in this build of torch");
    }
    bound.guard = GuardOf(node.op);
    const c10::FunctionSchema& schema = bound.op->schema();
    bound.bounded = BoundedArguments(schema);
    size_t used = 0;
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& declared = schema.arguments()[i];
      const auto named = node.kwargs.find(declared.name());
      const bool positional = i < node.args.size() && !declared.kwarg_only();
      if (positional && named != node.kwargs.end()) {
        return BadArgument(node.op, ": '", declared.name(), "' is given twice");
      }
      Operand operand;
      if (positional || named != node.kwargs.end()) {
        const Argument& given = positional ? node.args[i] : named->second;
        absl::StatusOr<Operand> taken = Take(given, declared.real_type());
        if (!taken.ok()) {
          return BadArgument(node.op, ": '", declared.name(), "', a ", declared.real_type()->str(), ", ",
                             taken.status().message());
        }
        operand = *std::move(taken);
        ++used;
      } else if (declared.default_value().has_value()) {
        operand.constant = *declared.default_value();
      } else {
        return BadArgument(node.op, ": '", declared.name(), "' is missing");
      }
      EGERIA_RETURN_IF_ERROR(CheckRequirements(node.op, declared.name(), operand));
      bound.args.push_back(std::move(operand));
    }
    if (used != node.args.size() + node.kwargs.size()) {
      return BadArgument(node.op, ": has arguments that the operator does not take");
    }
    EGERIA_RETURN_IF_ERROR(BindResults(node, schema, &bound));
    bound_->nodes.push_back(std::move(bound));
    return absl::OkStatus();
  }

  static absl::Status CheckRequirements(const std::string& op, const std::string& argument, const Operand& given) {
    for (const Requirement& required : Requirements()) {
      if (op != required.op || argument != required.argument) continue;
      if (given.kind != Operand::Kind::kConstant || !(given.constant == required.value)) {
        return BadArgument(op, ": '", argument, "' must be the constant of evaluation mode");
      }
    }
    if (argument == "pin_memory" && given.constant.isBool() && given.constant.toBool()) {
      return BadArgument(op, ": pinned memory is not for the controller");
    }
    return absl::OkStatus();
  }

  // Names the results. One name for several results names the first, and the rest stay within
  // egeria::getitem's reach; several names for one list name its items.
  absl::Status BindResults(const graph::Node& node, const c10::FunctionSchema& schema, BoundNode* bound) {
    const auto& returns = schema.returns();
    for (const c10::Argument& result : returns) {
      if (result.alias_info() != nullptr && result.alias_info()->isWrite()) {
        return BadArgument(node.op, " writes to its arguments");
      }
    }
    if (returns.size() == 1) {
      const c10::TypePtr type = returns[0].real_type();
      if (node.outputs.size() == 1) {
        bound->outputs.push_back(Define(node.outputs[0], type));
        return absl::OkStatus();
      }
      if (type->kind() != TypeKind::ListType) return BadArgument(node.op, " has only one result");
      bound->unpack = true;
      for (const std::string& name : node.outputs) {
        bound->outputs.push_back(Define(name, type->castRaw<c10::ListType>()->getElementType()));
      }
      return absl::OkStatus();
    }
    if (node.outputs.size() > returns.size()) return BadArgument(node.op, " has only ", returns.size(), " results");
    for (size_t i = 0; i < returns.size(); ++i) {
      const c10::TypePtr type = returns[i].real_type();
      bound->outputs.push_back(i < node.outputs.size() ? Define(node.outputs[i], type) : AddSlot(type));
    }
    if (node.outputs.size() == 1) tuples_[node.outputs[0]] = bound->outputs;
    return absl::OkStatus();
  }

  absl::Status BindOwn(const graph::Node& node) {
    if (node.args.size() != 2 || !node.kwargs.empty() || node.outputs.size() != 1) {
      return BadArgument(node.op, " takes two positional arguments and has one result");
    }
    if (node.op == "egeria::getitem") return BindGetItem(node);
    BoundNode bound{.kind = BoundNode::Kind::kInteger, .name = node.op};
    for (const Argument& argument : node.args) {
      absl::StatusOr<Operand> operand = Take(argument, c10::IntType::get());
      if (!operand.ok()) return BadArgument(node.op, " ", operand.status().message());
      bound.args.push_back(*std::move(operand));
    }
    bound.outputs.push_back(Define(node.outputs[0], c10::IntType::get()));
    bound_->nodes.push_back(std::move(bound));
    return absl::OkStatus();
  }

  absl::Status BindGetItem(const graph::Node& node) {
    const auto* value = std::get_if<graph::ValueRef>(&node.args[0].kind);
    const auto* index = std::get_if<int64_t>(&node.args[1].kind);
    if (value == nullptr || index == nullptr) return BadArgument(node.op, " takes a value and a constant");
    if (const auto tuple = tuples_.find(value->name); tuple != tuples_.end()) {
      if (*index < 0 || *index >= static_cast<int64_t>(tuple->second.size())) {
        return BadArgument(node.op, ": '", value->name, "' has no item ", *index);
      }
      slots_.emplace(node.outputs[0], tuple->second[*index]);  // another name for it: nothing to run
      return absl::OkStatus();
    }
    const int slot = slots_.at(value->name);
    const auto* list = bound_->types[slot]->castRaw<c10::ListType>();
    if (list == nullptr) return BadArgument(node.op, ": '", value->name, "' is no list");
    BoundNode bound{.kind = BoundNode::Kind::kGetItem, .name = node.op};
    bound.args.resize(2);
    bound.args[0].kind = Operand::Kind::kSlot;
    bound.args[0].slot = slot;
    bound.args[1].constant = *index;
    bound.outputs.push_back(Define(node.outputs[0], list->getElementType()));
    bound_->nodes.push_back(std::move(bound));
    return absl::OkStatus();
  }

  // The operand for a schema's argument of this type. The error's message continues a sentence.
  absl::StatusOr<Operand> Take(const Argument& argument, const c10::TypePtr& declared) const {
    c10::TypePtr type = declared;
    const auto* optional = declared->castRaw<c10::OptionalType>();
    if (optional != nullptr) type = optional->getElementType();
    Operand operand;
    if (std::holds_alternative<graph::None>(argument.kind)) {
      if (optional == nullptr) return Misfit("is none");
      return operand;
    }
    if (const auto* value = std::get_if<graph::ValueRef>(&argument.kind)) return TakeValue(value->name, type);
    if (const auto* list = std::get_if<graph::ArgumentList>(&argument.kind)) return TakeList(*list, type);
    EGERIA_ASSIGN_OR_RETURN(operand.constant, TakeConstant(argument, type));
    return operand;
  }

  absl::StatusOr<Operand> TakeValue(const std::string& name, const c10::TypePtr& type) const {
    Operand operand;
    operand.kind = Operand::Kind::kSlot;
    operand.slot = slots_.at(name);
    const c10::TypePtr& given = bound_->types[operand.slot];
    const TypeKind from = given->kind(), to = type->kind();
    if (from == to && to != TypeKind::ListType) return operand;
    if (IsInteger(from)) {
      if (IsInteger(to) || to == TypeKind::NumberType) return operand;
      if (to == TypeKind::FloatType) operand.kind = Operand::Kind::kFloatSlot;
      if (to == TypeKind::TensorType) operand.kind = Operand::Kind::kNumberSlot;
      if (operand.kind != Operand::Kind::kSlot) return operand;
    }
    if (to == TypeKind::ListType) {
      const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
      if (from == TypeKind::ListType && SameElement(given, element)) return operand;
      if (IsInteger(from) && IsInteger(element->kind())) {  // a number for all dimensions
        Operand list;
        list.kind = Operand::Kind::kList;
        list.element = element;
        list.items.push_back(std::move(operand));
        return list;
      }
    }
    return Misfit("is '", name, "', a ", given->str());
  }

  static bool SameElement(const c10::TypePtr& list, const c10::TypePtr& element) {
    const TypeKind kind = list->castRaw<c10::ListType>()->getElementType()->kind();
    return kind == element->kind() || (IsInteger(kind) && IsInteger(element->kind()));
  }

  absl::StatusOr<Operand> TakeList(const graph::ArgumentList& list, const c10::TypePtr& type) const {
    const auto* list_type = type->castRaw<c10::ListType>();
    if (list_type == nullptr) return Misfit("is a list");
    Operand operand;
    operand.kind = Operand::Kind::kList;
    operand.element = list_type->getElementType();
    bool constant = true;
    for (const Argument& item : list) {
      EGERIA_ASSIGN_OR_RETURN(Operand taken, Take(item, operand.element));
      constant = constant && taken.kind == Operand::Kind::kConstant;
      operand.items.push_back(std::move(taken));
    }
    if (!constant) return operand;
    Operand folded;
    try {
      folded.constant = Evaluate(operand, {});
    } catch (...) {
      return Misfit(StatusOfCurrentException("is a list that torch does not take").message());
    }
    return folded;
  }

  static absl::StatusOr<c10::IValue> TakeConstant(const Argument& argument, const c10::TypePtr& type) {
    const TypeKind kind = type->kind();
    if (const auto* dtype = std::get_if<DataType>(&argument.kind)) {
      if (kind == TypeKind::ScalarTypeType) return c10::IValue(static_cast<int64_t>(ToScalarType(*dtype)));
      return Misfit("is an element type");
    }
    if (const auto* text = std::get_if<std::string>(&argument.kind)) {
      if (kind == TypeKind::StringType) return c10::IValue(*text);
      if (kind == TypeKind::DeviceObjType && *text == "cpu") return c10::IValue(c10::Device(c10::kCPU));
      return Misfit("is a string");
    }
    if (const auto* boolean = std::get_if<bool>(&argument.kind)) {
      if (kind == TypeKind::BoolType || kind == TypeKind::NumberType) return c10::IValue(*boolean);
      if (kind == TypeKind::TensorType) return c10::IValue(WrappedNumber(*boolean));
      return Misfit("is a boolean");
    }
    if (const auto* number = std::get_if<double>(&argument.kind)) {
      if (kind == TypeKind::FloatType || kind == TypeKind::NumberType) return c10::IValue(*number);
      if (kind == TypeKind::TensorType) return c10::IValue(WrappedNumber(*number));
      return Misfit("is a floating-point number");
    }
    return TakeInteger(std::get<int64_t>(argument.kind), type);
  }

  static absl::StatusOr<c10::IValue> TakeInteger(int64_t number, const c10::TypePtr& type) {
    switch (type->kind()) {
      case TypeKind::IntType:
      case TypeKind::SymIntType:
      case TypeKind::NumberType: return c10::IValue(number);
      case TypeKind::FloatType: return c10::IValue(static_cast<double>(number));
      case TypeKind::TensorType: return c10::IValue(WrappedNumber(number));
      case TypeKind::MemoryFormatType:
        if (number >= 0 && number <= static_cast<int64_t>(at::MemoryFormat::ChannelsLast)) return c10::IValue(number);
        break;
      case TypeKind::LayoutType:
        if (number == static_cast<int64_t>(at::kStrided)) return c10::IValue(number);
        break;
      case TypeKind::ListType: {
        const TypeKind element = type->castRaw<c10::ListType>()->getElementType()->kind();
        if (IsInteger(element)) return c10::IValue(c10::List<int64_t>({number}));
        if (element == TypeKind::FloatType) return c10::IValue(c10::List<double>({static_cast<double>(number)}));
        break;
      }
      default: break;
    }
    return Misfit("is the integer ", number);
  }

  std::shared_ptr<BoundGraph> bound_ = std::make_shared<BoundGraph>();
  absl::flat_hash_map<std::string, int> slots_;
  absl::flat_hash_map<std::string, std::vector<int>> tuples_;  // results of an operator that has one name for all
};

}  // namespace

absl::StatusOr<std::shared_ptr<const BoundGraph>> Bind(const graph::ModuleGraph& graph) {
  EGERIA_RETURN_IF_ERROR(graph::Validate(graph));
  try {
    const c10::InferenceMode inference;
    return Binder().Run(graph);
  } catch (...) {
    return BadArgument(StatusOfCurrentException("binding").message());
  }
}

}  // namespace egeria::reference

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "common/reference/binding.h"
#include "common/reference/tensor_bridge.h"

namespace egeria::reference {
namespace {

using c10::IValue;
using c10::TypeKind;

template <typename T, typename Convert>
IValue MakeList(const Operand& list, const Frame& frame, Convert convert) {
  c10::List<T> result;
  result.reserve(list.items.size());
  for (const Operand& item : list.items) result.push_back(convert(Evaluate(item, frame)));
  return result;
}

IValue MakeList(const Operand& list, const Frame& frame) {
  switch (list.element->kind()) {
    case TypeKind::TensorType:
      return MakeList<at::Tensor>(list, frame, [](const IValue& value) { return value.toTensor(); });
    case TypeKind::IntType:
    case TypeKind::SymIntType: return MakeList<int64_t>(list, frame, [](const IValue& value) { return value.toInt(); });
    case TypeKind::FloatType:
      return MakeList<double>(list, frame, [](const IValue& value) { return value.toDouble(); });
    case TypeKind::BoolType: return MakeList<bool>(list, frame, [](const IValue& value) { return value.toBool(); });
    case TypeKind::OptionalType:
      return MakeList<std::optional<at::Tensor>>(list, frame, [](const IValue& value) {
        return value.isNone() ? std::optional<at::Tensor>() : value.toTensor();
      });
    default: TORCH_CHECK(false, "a list of ", list.element->str());
  }
}

// Rounds down, as Python does.
int64_t FloorDivide(int64_t a, int64_t b) {
  TORCH_CHECK(b != 0 && !(a == INT64_MIN && b == -1), "integer division ", a, " / ", b);
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

int64_t Integer(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "egeria::sym_add") overflow = __builtin_add_overflow(a, b, &result);
  else if (op == "egeria::sym_sub") overflow = __builtin_sub_overflow(a, b, &result);
  else if (op == "egeria::sym_mul") overflow = __builtin_mul_overflow(a, b, &result);
  else if (op == "egeria::sym_floordiv") result = FloorDivide(a, b);
  else if (op == "egeria::sym_mod") result = a - FloorDivide(a, b) * b;
  else if (op == "egeria::sym_max") result = std::max(a, b);
  else if (op == "egeria::sym_min") result = std::min(a, b);
  else TORCH_CHECK(false, "no such integer operator: ", op);
  TORCH_CHECK(!overflow, op, " overflows");
  return result;
}

void CallOperator(const BoundNode& node, Frame& frame) {
  std::vector<IValue> stack;
  stack.reserve(node.args.size());
  for (const Operand& operand : node.args) stack.push_back(Evaluate(operand, frame));
  for (size_t i : node.bounded) CheckIntegers(stack[i]);
  if (node.guard != nullptr) node.guard(stack);
  node.op->callBoxed(stack);
  if (node.unpack) {
    const c10::List<IValue> list = stack.at(0).toList();
    TORCH_CHECK(list.size() >= node.outputs.size(), "a list of ", list.size(), " for ", node.outputs.size(), " names");
    for (size_t i = 0; i < node.outputs.size(); ++i) frame[node.outputs[i]] = list.get(i);
    return;
  }
  TORCH_CHECK(stack.size() == node.outputs.size(), "an unexpected number of results");
  for (size_t i = 0; i < stack.size(); ++i) frame[node.outputs[i]] = std::move(stack[i]);
}

void CollectSlots(const Operand& operand, std::vector<int>* slots) {
  if (operand.slot >= 0) slots->push_back(operand.slot);
  for (const Operand& item : operand.items) CollectSlots(item, slots);
}

}  // namespace

IValue Evaluate(const Operand& operand, const Frame& frame) {
  switch (operand.kind) {
    case Operand::Kind::kConstant: return operand.constant;
    case Operand::Kind::kSlot: return frame[operand.slot];
    case Operand::Kind::kFloatSlot: return static_cast<double>(frame[operand.slot].toInt());
    case Operand::Kind::kNumberSlot: return WrappedNumber(frame[operand.slot].toInt());
    case Operand::Kind::kList: return MakeList(operand, frame);
  }
  return {};
}

std::vector<int> ReadSlots(const BoundNode& node) {
  std::vector<int> slots;
  for (const Operand& operand : node.args) CollectSlots(operand, &slots);
  return slots;
}

Step MakeStep(BoundNode bound) {
  Step step{.label = bound.name, .reads = ReadSlots(bound), .writes = bound.outputs};
  auto node = std::make_shared<const BoundNode>(std::move(bound));
  switch (node->kind) {
    case BoundNode::Kind::kOperator: step.run = [node](Frame& frame) { CallOperator(*node, frame); }; break;
    case BoundNode::Kind::kGetItem:
      step.run = [node](Frame& frame) {
        const c10::List<IValue> list = Evaluate(node->args[0], frame).toList();
        const int64_t index = node->args[1].constant.toInt();
        const int64_t size = static_cast<int64_t>(list.size());
        TORCH_CHECK(index >= -size && index < size, "no item ", index, " in a list of ", size);
        frame[node->outputs[0]] = list.get(index < 0 ? index + size : index);
      };
      break;
    case BoundNode::Kind::kInteger:
      step.run = [node](Frame& frame) {
        frame[node->outputs[0]] =
            Integer(node->name, Evaluate(node->args[0], frame).toInt(), Evaluate(node->args[1], frame).toInt());
      };
      break;
  }
  return step;
}

}  // namespace egeria::reference

#ifndef EGERIA_COMMON_REFERENCE_BINDING_H_
#define EGERIA_COMMON_REFERENCE_BINDING_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/graph/graph.h"
#include "common/reference/operator_guards.h"
#include "common/reference/program.h"

// A module graph tied to torch's operator schemas: names became slots, arguments became typed operands. All
// that can be wrong with an argument's kind is found here, once, and not while samples are evaluated.
namespace egeria::reference {

// Where an argument comes from, in the form in which its operator wants it.
struct Operand {
  enum class Kind {
    kConstant,
    kSlot,
    kNumberSlot,  // an integer value for a Tensor argument: wrapped, so that it does not promote types
    kFloatSlot,   // an integer value for a float argument
    kList,        // built from items at each run
  };
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  int slot = -1;
  std::vector<Operand> items;
  c10::TypePtr element;  // type of a list's elements
};

struct BoundNode {
  enum class Kind { kOperator, kGetItem, kInteger };
  Kind kind = Kind::kOperator;
  std::string name;  // qualified, without the overload
  std::string overload;
  std::optional<c10::OperatorHandle> op;  // kOperator
  OperatorGuard guard = nullptr;          // checks the arguments of each call
  std::vector<size_t> bounded;            // the arguments that CheckIntegers() checks
  std::vector<Operand> args;              // kOperator: one per argument of the schema
  std::vector<int> outputs;               // slots: one per result
  bool unpack = false;                    // the one result is a list, and `outputs` are its items
};

// Immutable after Bind(): shared by the evaluator's thread and those that check arriving tensors.
struct BoundGraph {
  std::vector<TensorSpec> input_specs, weight_specs;
  std::vector<int> inputs, weights, outputs;  // slots
  std::vector<BoundNode> nodes;
  std::vector<c10::TypePtr> types;  // static type of each slot

  int slots() const { return static_cast<int>(types.size()); }
};

// Errors: those of graph::Validate(); INVALID_ARGUMENT [BAD_ARGUMENT] an argument that the operator's schema
// does not take, a missing one, an output that is not a tensor, or dropout, batch_norm or attention that is
// not in evaluation mode; [UNKNOWN_OP] an operator that this torch lacks.
absl::StatusOr<std::shared_ptr<const BoundGraph>> Bind(const graph::ModuleGraph& graph);

// The operand's value in `frame`.
c10::IValue Evaluate(const Operand& operand, const Frame& frame);

// The slots that the node reads.
std::vector<int> ReadSlots(const BoundNode& node);

// A step that runs the node through torch's dispatcher.
Step MakeStep(BoundNode node);

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_BINDING_H_

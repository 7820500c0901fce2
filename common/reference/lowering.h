#ifndef EGERIA_COMMON_REFERENCE_LOWERING_H_
#define EGERIA_COMMON_REFERENCE_LOWERING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/reference/binding.h"

// Finds what may run as one operator: convolution [+ BatchNorm] [+ residual] [+ ReLU or clamp], and
// linear [+ ReLU or GELU]. Both spellings of an operator are known: torch.export's (aten::conv2d,
// aten::_native_batch_norm_legit_no_training) and the C++ tracer's (aten::_convolution, aten::batch_norm).
namespace egeria::reference {

enum class Activation { kNone, kRelu, kClamp, kGelu };

// Slots are those of the bound graph; -1 is "none".
struct FusedGroup {
  struct BatchNorm {
    int weight = -1, bias = -1, mean = -1, variance = -1;
    double epsilon = 0;
  };
  bool convolution = false;  // false: linear
  int input = -1;
  int weight = -1, bias = -1;
  std::optional<BatchNorm> batch_norm;
  int residual = -1;  // added to the convolution's result before the activation
  Activation activation = Activation::kNone;
  double clamp_low = 0, clamp_high = 0;
  std::string gelu;  // "none" or "tanh"
  int output = -1;
  std::vector<int64_t> stride, padding, dilation;  // two each; convolutions only
  int64_t groups = 1;
};

struct LoweredGraph {
  std::shared_ptr<const BoundGraph> graph;
  // In an order in which every value is defined before its use: a group, or a node of the graph by index.
  std::vector<std::variant<FusedGroup, size_t>> items;
  size_t fused = 0;  // how many items are groups
};

LoweredGraph Lower(std::shared_ptr<const BoundGraph> graph);

// The group's weight and bias with the BatchNorm folded into them; the bias is undefined where there is none.
struct FoldedWeights {
  at::Tensor weight, bias;
};
// `weights` by slot, as in Program::initial. May throw.
FoldedWeights Fold(const FusedGroup& group, const Frame& weights);

// A node as the optimised backends run it: reads renamed by `rename` (identity if empty), and a view as a
// reshape, since fused operators hand on other memory layouts than the tracer saw.
Step MakeLoweredStep(BoundNode node, const std::function<int(int)>& rename);

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_LOWERING_H_

#include "common/reference/lowering.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

namespace egeria::reference {
namespace {

using Kind = Operand::Kind;

class Lowerer {
 public:
  explicit Lowerer(std::shared_ptr<const BoundGraph> graph) : graph_(std::move(graph)) {
    const size_t count = graph_->nodes.size();
    users_.resize(graph_->slots());
    taken_.resize(count, false);
    spec_.resize(graph_->slots(), nullptr);
    is_output_.resize(graph_->slots(), false);
    for (size_t i = 0; i < count; ++i) {
      for (int slot : ReadSlots(graph_->nodes[i])) users_[slot].push_back(i);
    }
    for (size_t i = 0; i < graph_->weights.size(); ++i) spec_[graph_->weights[i]] = &graph_->weight_specs[i];
    for (int slot : graph_->outputs) is_output_[slot] = true;
  }

  LoweredGraph Run() {
    LoweredGraph lowered{.graph = graph_};
    std::vector<std::optional<FusedGroup>> ends(graph_->nodes.size());  // by the group's last node
    for (size_t i = 0; i < graph_->nodes.size(); ++i) {
      if (taken_[i]) continue;
      std::optional<FusedGroup> group = Start(graph_->nodes[i]);
      if (!group.has_value()) continue;
      taken_[i] = true;
      const size_t end = Extend(i, &*group);
      ends[end] = std::move(group);
      ++lowered.fused;
    }
    for (size_t i = 0; i < graph_->nodes.size(); ++i) {
      if (ends[i].has_value()) {
        lowered.items.emplace_back(*std::move(ends[i]));
      } else if (!taken_[i]) {
        lowered.items.emplace_back(i);
      }
    }
    return lowered;
  }

 private:
  // The weight that the operand names, of this rank and in float32; -1 for anything else.
  int Weight(const Operand& operand, size_t rank) const {
    if (operand.kind != Kind::kSlot || spec_[operand.slot] == nullptr) return -1;
    const TensorSpec& spec = *spec_[operand.slot];
    return spec.dtype == DataType::kFloat32 && spec.shape.size() == rank ? operand.slot : -1;
  }
  static bool IsNone(const Operand& operand) { return operand.kind == Kind::kConstant && operand.constant.isNone(); }

  // A constant list of one or two integers, as two; false for anything else.
  static bool Pair(const Operand& operand, int64_t at_least, std::vector<int64_t>* pair) {
    if (operand.kind != Kind::kConstant || !operand.constant.isIntList()) return false;
    *pair = operand.constant.toIntVector();
    if (pair->size() == 1) pair->push_back(pair->front());
    return pair->size() == 2 &&
           std::all_of(pair->begin(), pair->end(), [&](int64_t n) { return n >= at_least && n < (1 << 20); });
  }

  std::optional<FusedGroup> Start(const BoundNode& node) const {
    FusedGroup group;
    const bool conv2d = node.name == "aten::conv2d" && node.overload.empty();
    const bool convolution = node.name == "aten::_convolution" || node.name == "aten::convolution";
    group.convolution = conv2d || convolution;
    if (!group.convolution && node.name != "aten::linear") return std::nullopt;
    if (node.args[0].kind != Kind::kSlot) return std::nullopt;
    group.input = node.args[0].slot;
    group.output = node.outputs[0];
    group.weight = Weight(node.args[1], group.convolution ? 4 : 2);
    group.bias = Weight(node.args[2], 1);
    if (group.weight < 0 || (group.bias < 0 && !IsNone(node.args[2]))) return std::nullopt;
    const std::vector<int64_t>& shape = spec_[group.weight]->shape;
    if (std::any_of(shape.begin(), shape.end(), [](int64_t n) { return n == 0; })) return std::nullopt;
    if (group.bias >= 0 && spec_[group.bias]->shape[0] != shape[0]) return std::nullopt;
    if (!group.convolution) return group;

    if (!Pair(node.args[3], 1, &group.stride) || !Pair(node.args[4], 0, &group.padding) ||
        !Pair(node.args[5], 1, &group.dilation)) {
      return std::nullopt;
    }
    if (convolution && !(node.args[6].constant.isBool() && !node.args[6].constant.toBool())) {
      return std::nullopt;  // transposed
    }
    const Operand& groups = node.args[convolution ? 8 : 6];
    if (!groups.constant.isInt()) return std::nullopt;
    group.groups = groups.constant.toInt();
    if (group.groups < 1 || shape[0] % group.groups != 0) return std::nullopt;
    return group;
  }

  // The only node that reads the slot; none where it is an output or has more readers.
  std::optional<size_t> SoleUser(int slot) const {
    if (is_output_[slot] || users_[slot].size() != 1 || taken_[users_[slot][0]]) return std::nullopt;
    return users_[slot][0];
  }

  // Takes the nodes that follow into the group; returns the last one.
  size_t Extend(size_t start, FusedGroup* group) {
    size_t end = start;
    const auto take = [&](size_t node) {
      taken_[node] = true;
      group->output = graph_->nodes[node].outputs[0];
      end = node;
    };
    std::optional<size_t> next = SoleUser(group->output);
    if (group->convolution && next && TakeBatchNorm(graph_->nodes[*next], group)) {
      take(*next);
      next = SoleUser(group->output);
    }
    if (group->convolution && next && TakeResidual(graph_->nodes[*next], group)) {
      take(*next);
      next = SoleUser(group->output);
    }
    if (next && TakeActivation(graph_->nodes[*next], group)) take(*next);
    return end;
  }

  bool TakeBatchNorm(const BoundNode& node, FusedGroup* group) const {
    const bool exported = node.name == "aten::_native_batch_norm_legit_no_training";
    if (!exported && node.name != "aten::batch_norm") return false;
    if (node.args[0].slot != group->output) return false;
    for (size_t i = 1; i < node.outputs.size(); ++i) {  // batch statistics: nobody should want them
      if (is_output_[node.outputs[i]] || !users_[node.outputs[i]].empty()) return false;
    }
    FusedGroup::BatchNorm norm{.weight = Weight(node.args[1], 1),
                               .bias = Weight(node.args[2], 1),
                               .mean = Weight(node.args[3], 1),
                               .variance = Weight(node.args[4], 1)};
    const bool affine = (norm.weight >= 0 || IsNone(node.args[1])) && (norm.bias >= 0 || IsNone(node.args[2]));
    const Operand& epsilon = node.args[exported ? 6 : 7];
    if (!affine || norm.mean < 0 || norm.variance < 0 || !epsilon.constant.isDouble()) return false;
    const int64_t channels = spec_[group->weight]->shape[0];
    for (int slot : {norm.weight, norm.bias, norm.mean, norm.variance}) {
      if (slot >= 0 && spec_[slot]->shape[0] != channels) return false;
    }
    norm.epsilon = epsilon.constant.toDouble();
    group->batch_norm = norm;
    return true;
  }

  bool TakeResidual(const BoundNode& node, FusedGroup* group) const {
    if (node.name != "aten::add" || node.overload != "Tensor") return false;
    const Operand &a = node.args[0], &b = node.args[1], &alpha = node.args[2];
    if (a.kind != Kind::kSlot || b.kind != Kind::kSlot || a.slot == b.slot) return false;
    if (!alpha.constant.isScalar() || !alpha.constant.toScalar().equal(1)) return false;
    const int other = a.slot == group->output ? b.slot : a.slot;
    if (spec_[other] != nullptr) return false;  // a weight: broadcast, most likely
    group->residual = other;
    return true;
  }

  static bool TakeActivation(const BoundNode& node, FusedGroup* group) {
    if (node.name == "aten::relu") {
      group->activation = Activation::kRelu;
      return true;
    }
    if (group->convolution && group->residual < 0 && (node.name == "aten::hardtanh" || node.name == "aten::relu6")) {
      group->clamp_high = 6;
      if (node.name == "aten::hardtanh") {
        if (!node.args[1].constant.isScalar() || !node.args[2].constant.isScalar()) return false;
        group->clamp_low = node.args[1].constant.toScalar().toDouble();
        group->clamp_high = node.args[2].constant.toScalar().toDouble();
      }
      if (!(group->clamp_low < group->clamp_high)) return false;
      group->activation = Activation::kClamp;
      return true;
    }
    if (!group->convolution && node.name == "aten::gelu" && node.args[1].constant.isString()) {
      group->gelu = node.args[1].constant.toStringRef();
      if (group->gelu != "none" && group->gelu != "tanh") return false;
      group->activation = Activation::kGelu;
      return true;
    }
    return false;
  }

  std::shared_ptr<const BoundGraph> graph_;
  std::vector<std::vector<size_t>> users_;  // by slot: nodes that read it, once per argument
  std::vector<const TensorSpec*> spec_;     // by slot: of weights
  std::vector<bool> is_output_;
  std::vector<bool> taken_;
};

void Rename(Operand* operand, const std::function<int(int)>& rename) {
  if (operand->slot >= 0) operand->slot = rename(operand->slot);
  for (Operand& item : operand->items) Rename(&item, rename);
}

}  // namespace

LoweredGraph Lower(std::shared_ptr<const BoundGraph> graph) { return Lowerer(std::move(graph)).Run(); }

FoldedWeights Fold(const FusedGroup& group, const Frame& weights) {
  const auto tensor = [&](int slot) { return slot < 0 ? at::Tensor() : weights[slot].toTensor(); };
  FoldedWeights folded{tensor(group.weight), tensor(group.bias)};
  if (!group.batch_norm.has_value()) return folded;
  const FusedGroup::BatchNorm& norm = *group.batch_norm;
  const at::Tensor mean = tensor(norm.mean), gamma = tensor(norm.weight), beta = tensor(norm.bias);
  at::Tensor scale = at::rsqrt(tensor(norm.variance) + norm.epsilon);
  if (gamma.defined()) scale = scale * gamma;
  folded.weight = folded.weight * scale.view({-1, 1, 1, 1});
  folded.bias = ((folded.bias.defined() ? folded.bias : at::zeros_like(mean)) - mean) * scale;
  if (beta.defined()) folded.bias = folded.bias + beta;
  return folded;
}

Step MakeLoweredStep(BoundNode node, const std::function<int(int)>& rename) {
  if (node.name == "aten::view" || node.name == "aten::_unsafe_view") {
    node.op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::reshape", "");
  }
  if (rename) {
    for (Operand& operand : node.args) Rename(&operand, rename);
  }
  return MakeStep(std::move(node));
}

}  // namespace egeria::reference

#include <ATen/TensorOperators.h>
#include <ATen/ops/all.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/reference/backend.h"
#include "common/reference/onednn_ops.h"
#include "common/reference/quantize.h"
#include "common/reference/tensor_bridge.h"

namespace egeria::reference {
namespace {

// Ranges come from few batches; twice their ends keeps the next batches' values inside.
constexpr float kRangeMargin = 2.0f;
// Results that oneDNN quantises itself are looked through for saturation once in so many runs.
constexpr int64_t kInspectEvery = 8;

struct Int8Ops {
  OperatorCall prepack_convolution{"onednn::qconv_prepack", ""};
  OperatorCall convolution{"onednn::qconv2d_pointwise", ""};
  OperatorCall convolution_sum{"onednn::qconv2d_pointwise", "binary"};
  OperatorCall prepack_linear{"onednn::qlinear_prepack", ""};
  OperatorCall linear{"onednn::qlinear_pointwise", ""};

  static const Int8Ops& Get() {
    static const auto* const ops = new Int8Ops;
    return *ops;
  }
  absl::Status Check() const {
    return CheckAvailable({&prepack_convolution, &convolution, &convolution_sum, &prepack_linear, &linear});
  }
};

// Processors without VNNI instructions add the products of two neighbours in 16 bits. Where bytes and weights are large
// and of one sign, such a sum overflows silently. With weights of seven bits it cannot.
constexpr int kLargestWeight = 127;
constexpr int kLargestWeightOfPairs = 64;

// The largest size of a weight with which oneDNN's sums are exact on this processor, found by such a sum. May throw.
int LargestWeight() {
  static const int largest = [] {
    constexpr int kRows = 8, kWidth = 384;
    const at::Tensor bytes = at::full({kRows, kWidth}, 255, at::kByte);
    const at::Tensor weight = at::full({kRows, kWidth}, kLargestWeight, at::kChar);
    const Int8Ops& ops = Int8Ops::Get();
    const at::Tensor sums =
        ops.linear(bytes, 1.0, int64_t{0}, ops.prepack_linear(weight, c10::IValue()), at::ones({kRows}),
                   at::zeros({kRows}, at::kInt), c10::IValue(), 1.0, int64_t{0}, static_cast<int64_t>(at::kFloat),
                   std::string("none"), ScalarList({}), std::string("none"));
    const float exact = 255.0f * kLargestWeight * kWidth;
    return at::all(at::eq(sums, exact)).item<bool>() ? kLargestWeight : kLargestWeightOfPairs;
  }();
  return largest;
}

// A group with its weights in 8 bits. Slots are those of the program: quantised values have their own.
struct PackedGroup {
  FusedGroup group;
  std::vector<int64_t> weight_shape;
  at::Tensor weight, scales, zero_points, bias;
  QuantizationParameters in, out, residual_parameters;
  int input = -1, output = -1, residual = -1;
  bool byte_result = false;    // false: float32
  bool keep_residual = false;  // the sum overwrites its accumulator, which someone else may read
  std::shared_ptr<SaturationCount> saturation;
  mutable int64_t runs = 0;  // owned by the evaluator's thread
};

c10::IValue ResultType(const PackedGroup& packed) {
  return static_cast<int64_t>(packed.byte_result ? at::kByte : at::kFloat);
}
double ResultScale(const PackedGroup& packed) { return packed.byte_result ? packed.out.scale : 1.0; }
int64_t ResultZero(const PackedGroup& packed) { return packed.byte_result ? packed.out.zero_point : 0; }

at::Tensor Accumulator(const PackedGroup& packed, const Frame& frame, const std::vector<int64_t>& shape) {
  at::Tensor residual = frame[packed.residual].toTensor();
  TORCH_CHECK(residual.sizes() == shape, "an 8-bit sum does not broadcast ", residual.sizes());
  TORCH_CHECK(residual.scalar_type() == (packed.byte_result ? at::kByte : at::kFloat), "an 8-bit sum of another type");
  if (!residual.is_contiguous(at::MemoryFormat::ChannelsLast)) {
    return residual.contiguous(at::MemoryFormat::ChannelsLast);
  }
  return packed.keep_residual ? residual.clone() : residual;
}

at::Tensor Convolve(const PackedGroup& packed, const Frame& frame) {
  const Int8Ops& ops = Int8Ops::Get();
  const FusedGroup& group = packed.group;
  at::Tensor input = frame[packed.input].toTensor();
  const std::vector<int64_t> shape = CheckConvolutionInput(group, packed.weight_shape, input);
  input = input.contiguous(at::MemoryFormat::ChannelsLast);
  if (group.residual < 0) {
    return ops.convolution(input, packed.in.scale, packed.in.zero_point, packed.weight, packed.scales,
                           packed.zero_points, OptionalTensor(packed.bias), IntList(group.stride),
                           IntList(group.padding), IntList(group.dilation), group.groups, ResultScale(packed),
                           ResultZero(packed), ResultType(packed), std::string(ActivationName(group)),
                           ScalarList(ActivationScalars(group)), c10::IValue());
  }
  const QuantizationParameters sum = packed.byte_result ? packed.residual_parameters : QuantizationParameters{};
  return ops.convolution_sum(input, packed.in.scale, packed.in.zero_point, packed.weight, packed.scales,
                             packed.zero_points, Accumulator(packed, frame, shape), OptionalTensor(packed.bias),
                             IntList(group.stride), IntList(group.padding), IntList(group.dilation), group.groups,
                             ResultScale(packed), ResultZero(packed), ResultType(packed), sum.scale, sum.zero_point,
                             std::string("sum"), c10::IValue(1.0),
                             group.activation == Activation::kNone ? c10::IValue() : c10::IValue(std::string("relu")),
                             ScalarList({}), c10::IValue());
}

at::Tensor Linear(const PackedGroup& packed, const Frame& frame) {
  const at::Tensor input = frame[packed.input].toTensor();
  CheckLinearInput(packed.weight_shape, input);
  return Int8Ops::Get().linear(input.contiguous(), packed.in.scale, packed.in.zero_point, packed.weight, packed.scales,
                               packed.zero_points, OptionalTensor(packed.bias), ResultScale(packed), ResultZero(packed),
                               ResultType(packed), std::string(ActivationName(packed.group)), ScalarList({}),
                               packed.group.gelu.empty() ? std::string("none") : packed.group.gelu);
}

void RunGroup(const PackedGroup& packed, Frame& frame) {
  at::Tensor result = packed.group.convolution ? Convolve(packed, frame) : Linear(packed, frame);
  if (packed.byte_result && packed.runs++ % kInspectEvery == 0) {
    CountSaturated(result, packed.out, packed.saturation.get());
  }
  frame[packed.output] = std::move(result);
}

// Builds the program of one module. Every value may exist twice, as float32 in the graph's own slot and as
// bytes in a slot of this class; steps that convert are inserted where the first reader needs the other kind.
class Packer {
 public:
  Packer(const PackInput& input, bool float_residual)
      : input_(input), float_residual_(float_residual), program_(MakeProgram(input)) {
    const int slots = input.graph->graph->slots();
    byte_slot_.assign(slots, -1);
    is_float_.assign(slots, false);
    made_by_group_.assign(slots, false);
    for (int slot : input.graph->graph->inputs) is_float_[slot] = true;
    for (int slot : input.graph->graph->weights) is_float_[slot] = true;
    FindReaders();
  }

  Program Run() {
    for (size_t i = 0; i < input_.graph->items.size(); ++i) {
      if (const auto* group = std::get_if<FusedGroup>(&input_.graph->items[i])) {
        AddGroup(*group, i);
        continue;
      }
      const BoundNode& node = input_.graph->graph->nodes[std::get<size_t>(input_.graph->items[i])];
      for (int slot : ReadSlots(node)) FloatOf(slot);
      program_.steps.push_back(MakeLoweredStep(node, nullptr));
      for (int slot : node.outputs) is_float_[slot] = true;
    }
    for (int slot : program_.outputs) FloatOf(slot);
    program_.FindDeadValues();
    return std::move(program_);
  }

 private:
  struct Readers {
    bool bytes = false;     // a group reads it as its input
    bool floats = false;    // a plain node does, or it is an output
    bool residual = false;  // a group adds it
    size_t last = 0;        // the last item that reads it
  };

  void FindReaders() {
    readers_.resize(input_.graph->graph->slots());
    for (size_t i = 0; i < input_.graph->items.size(); ++i) {
      if (const auto* group = std::get_if<FusedGroup>(&input_.graph->items[i])) {
        readers_[group->input].bytes = true;
        readers_[group->input].last = i;
        if (group->residual < 0) continue;
        readers_[group->residual].residual = true;
        readers_[group->residual].last = i;
      } else {
        for (int slot : ReadSlots(input_.graph->graph->nodes[std::get<size_t>(input_.graph->items[i])])) {
          readers_[slot].floats = true;
          readers_[slot].last = i;
        }
      }
    }
    for (int slot : input_.graph->graph->outputs) {
      readers_[slot].floats = true;
      readers_[slot].last = input_.graph->items.size();
    }
  }

  QuantizationParameters Parameters(int slot) const {
    const ActivationRange& range = (*input_.ranges)[slot];
    TORCH_CHECK(range.known(), "no activation range was recorded");
    return ChooseParameters(range, kRangeMargin);
  }

  int BytesOf(int slot) {
    if (byte_slot_[slot] >= 0) return byte_slot_[slot];
    const int bytes = byte_slot_[slot] = program_.AddSlot();
    program_.steps.push_back(
        {.label = "quantise",
         .reads = {slot},
         .writes = {bytes},
         .run = [slot, bytes, parameters = Parameters(slot), saturation = input_.saturation](Frame& frame) {
           frame[bytes] = Quantize(frame[slot].toTensor(), parameters, saturation.get());
         }});
    return bytes;
  }

  int FloatOf(int slot) {
    if (is_float_[slot]) return slot;
    is_float_[slot] = true;
    program_.steps.push_back({.label = "dequantise",
                              .reads = {byte_slot_[slot]},
                              .writes = {slot},
                              .run = [slot, bytes = byte_slot_[slot], parameters = Parameters(slot)](Frame& frame) {
                                frame[slot] = Dequantize(frame[bytes].toTensor(), parameters);
                              }});
    return slot;
  }

  // Whether the group's result is produced as bytes: where only groups read it. A sum in float32 is for
  // results that a plain node or the caller reads, or for all sums (float_residual_).
  bool ByteResult(const FusedGroup& group) const {
    const Readers& readers = readers_[group.output];
    if (readers.floats || (!readers.bytes && !readers.residual)) return false;
    if (float_residual_ && (readers.residual || group.residual >= 0)) return false;
    return true;
  }

  void AddGroup(const FusedGroup& group, size_t item) {
    auto packed = std::make_shared<PackedGroup>();
    packed->group = group;
    const FoldedWeights folded = Fold(group, program_.initial);
    packed->weight_shape = folded.weight.sizes().vec();
    packed->bias = folded.bias;
    packed->in = Parameters(group.input);
    packed->byte_result = ByteResult(group);
    packed->saturation = input_.saturation;
    PackWeight(group, folded.weight, packed.get());
    packed->input = BytesOf(group.input);
    Step step{.label = group.convolution ? "int8 convolution" : "int8 linear", .reads = {packed->input}};
    if (group.residual >= 0) {
      packed->residual = packed->byte_result ? BytesOf(group.residual) : FloatOf(group.residual);
      if (packed->byte_result) packed->residual_parameters = Parameters(group.residual);
      packed->keep_residual = !MayOverwrite(group, item);
      step.reads.push_back(packed->residual);
    }
    if (packed->byte_result) {
      packed->out = Parameters(group.output);
      packed->output = byte_slot_[group.output] = program_.AddSlot();
    } else {
      packed->output = group.output;
      is_float_[group.output] = true;
    }
    made_by_group_[group.output] = true;
    step.writes = {packed->output};
    step.run = [packed = std::shared_ptr<const PackedGroup>(std::move(packed))](Frame& frame) {
      RunGroup(*packed, frame);
    };
    program_.steps.push_back(std::move(step));
  }

  void PackWeight(const FusedGroup& group, const at::Tensor& weight, PackedGroup* packed) const {
    const QuantizedWeight quantized = QuantizeWeight(weight, LargestWeight());
    packed->scales = quantized.scales;
    packed->zero_points = quantized.zero_points;
    const Int8Ops& ops = Int8Ops::Get();
    if (group.convolution) {
      packed->weight =
          ops.prepack_convolution(quantized.values.contiguous(at::MemoryFormat::ChannelsLast), quantized.scales,
                                  packed->in.scale, packed->in.zero_point, IntList(group.stride),
                                  IntList(group.padding), IntList(group.dilation), group.groups, c10::IValue());
    } else {
      packed->weight = ops.prepack_linear(quantized.values.contiguous(), c10::IValue());
    }
  }

  // The sum may overwrite its accumulator only if a group made it, no plain node has seen it (it might have
  // kept a view), it is not the group's own input, and this is its last reader.
  bool MayOverwrite(const FusedGroup& group, size_t item) const {
    const Readers& readers = readers_[group.residual];
    return made_by_group_.at(group.residual) && !readers.floats && group.residual != group.input &&
           readers.last == item;
  }

  const PackInput& input_;
  const bool float_residual_;
  Program program_;
  std::vector<Readers> readers_;
  std::vector<int> byte_slot_;  // by slot of the graph: where its bytes are, or -1
  std::vector<bool> is_float_;  // whether its own slot holds float32 by now
  std::vector<bool> made_by_group_;
};

class Int8Backend final : public Backend {
 public:
  explicit Int8Backend(bool float_residual)
      : name_(float_residual ? "int8/f32-residual" : "int8"), float_residual_(float_residual) {}
  const std::string& name() const override { return name_; }
  const std::string& family() const override { return family_; }

  absl::StatusOr<Program> Pack(const PackInput& input) const override {
    EGERIA_RETURN_IF_ERROR(Int8Ops::Get().Check());
    if (input.graph->fused == 0) return absl::UnimplementedError("nothing in the module can be fused");
    if (input.ranges == nullptr) return absl::FailedPreconditionError("8-bit programs need activation ranges");
    try {
      const c10::InferenceMode inference;
      return Packer(input, float_residual_).Run();
    } catch (...) {
      return StatusOfCurrentException(name_);
    }
  }

 private:
  const std::string name_;
  const std::string family_ = "int8";
  const bool float_residual_;
};

}  // namespace

std::unique_ptr<Backend> MakeInt8Backend(bool float_residual) { return std::make_unique<Int8Backend>(float_residual); }

}  // namespace egeria::reference

#include "tests/support/reference_graphs.h"

#include <cmath>
#include <limits>

namespace egeria::testing {

using graph::Argument;
using graph::ArgumentList;

Argument Ref(std::string name) { return Argument{graph::ValueRef{std::move(name)}}; }
Argument Int(int64_t value) { return Argument{value}; }
Argument Float(double value) { return Argument{value}; }
Argument Bool(bool value) { return Argument{value}; }
Argument Text(std::string value) { return Argument{std::move(value)}; }
Argument None() { return Argument{graph::None{}}; }
Argument Ints(const std::vector<int64_t>& values) {
  ArgumentList list;
  for (int64_t value : values) list.push_back(Int(value));
  return Argument{std::move(list)};
}

WireTensor RandomTensor(const std::string& name, std::vector<int64_t> shape, std::mt19937_64& random, float deviation,
                        float mean) {
  int64_t count = 1;
  for (int64_t dimension : shape) count *= dimension;
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return MakeWireTensor({name, DataType::kFloat32, std::move(shape)}, values.data());
}

GraphBuilder::GraphBuilder(std::string name, std::vector<int64_t> input_shape, uint64_t seed, Spelling spelling)
    : random_(seed), spelling_(spelling) {
  module_.name = std::move(name);
  module_.input_shape = input_shape;
  input_shape.insert(input_shape.begin(), -1);
  module_.graph.inputs = {{input_, DataType::kFloat32, std::move(input_shape)}};
}

std::string GraphBuilder::NextName() { return "v" + std::to_string(values_++); }

std::string GraphBuilder::Node(const std::string& op, const std::string& overload, std::vector<Argument> args) {
  const std::string name = NextName();
  module_.graph.nodes.push_back({op, overload, std::move(args), {}, {name}});
  return name;
}

std::string GraphBuilder::Weight(std::vector<int64_t> shape, float deviation, float mean, bool positive) {
  const std::string name = "w" + std::to_string(module_.weights.size());
  WireTensor weight = RandomTensor(name, shape, random_, deviation, mean);
  if (positive) {
    std::vector<float> values(weight.size() / sizeof(float));
    const auto* data = reinterpret_cast<const float*>(weight.data());
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::abs(data[i]) + 0.1f;
    weight = MakeWireTensor(weight.spec, values.data());
  }
  module_.graph.weights.push_back(weight.spec);
  module_.weights.push_back(std::move(weight));
  return name;
}

std::string GraphBuilder::Convolution(const std::string& x, int64_t in, int64_t out, int64_t kernel, int64_t stride,
                                      int64_t groups) {
  const float deviation = std::sqrt(2.0f / static_cast<float>(in / groups * kernel * kernel));
  const std::string weight = Weight({out, in / groups, kernel, kernel}, deviation);
  const int64_t padding = kernel / 2;
  if (spelling_ == Spelling::kTraced) {
    return Node("aten::_convolution", "",
                {Ref(x), Ref(weight), None(), Ints({stride, stride}), Ints({padding, padding}), Ints({1, 1}),
                 Bool(false), Ints({0, 0}), Int(groups), Bool(false), Bool(false), Bool(true), Bool(true)});
  }
  return Node(
      "aten::conv2d", "",
      {Ref(x), Ref(weight), None(), Ints({stride, stride}), Ints({padding, padding}), Ints({1, 1}), Int(groups)});
}

std::string GraphBuilder::BatchNorm(const std::string& x, int64_t channels, float gain) {
  std::vector<Argument> args = {Ref(x), Ref(Weight({channels}, 0.2f * gain, gain)), Ref(Weight({channels}, 0.1f)),
                                Ref(Weight({channels}, 0.1f)), Ref(Weight({channels}, 0.2f, 1, true))};
  if (spelling_ == Spelling::kTraced) {
    args.insert(args.end(), {Bool(false), Float(0.1), Float(1e-5), Bool(true)});
    return Node("aten::batch_norm", "", std::move(args));
  }
  args.insert(args.end(), {Float(0.1), Float(1e-5)});
  return Node("aten::_native_batch_norm_legit_no_training", "", std::move(args));
}

std::string GraphBuilder::Linear(const std::string& x, int64_t in, int64_t out) {
  const std::string weight = Weight({out, in}, 1 / std::sqrt(static_cast<float>(in)));
  return Node("aten::linear", "", {Ref(x), Ref(weight), Ref(Weight({out}, 0.05f))});
}

std::string GraphBuilder::LayerNorm(const std::string& x, int64_t width) {
  return Node("aten::layer_norm", "",
              {Ref(x), Ints({width}), Ref(Weight({width}, 0.1f, 1)), Ref(Weight({width}, 0.1f)), Float(1e-12)});
}

std::string GraphBuilder::Relu(const std::string& x) { return Node("aten::relu", "", {Ref(x)}); }
std::string GraphBuilder::Add(const std::string& a, const std::string& b) {
  return Node("aten::add", "Tensor", {Ref(a), Ref(b)});
}

SampleModule GraphBuilder::Finish(const std::string& output) {
  module_.graph.outputs = {output};
  return std::move(module_);
}

namespace {

constexpr float kBranchGain = 0.4f;

// A basic block that halves the images where stride is 2; its shortcut then subsamples and pads with zeros.
std::string AddBasicBlock(GraphBuilder& builder, const std::string& x, int64_t in, int64_t out, int64_t stride) {
  std::string y = builder.Relu(builder.BatchNorm(builder.Convolution(x, in, out, 3, stride), out));
  y = builder.BatchNorm(builder.Convolution(y, out, out, 3, 1), out, kBranchGain);
  std::string shortcut = x;
  if (stride != 1) {
    for (int64_t dimension : {2, 3}) {
      shortcut =
          builder.Node("aten::slice", "Tensor",
                       {Ref(shortcut), Int(dimension), Int(0), Int(std::numeric_limits<int64_t>::max()), Int(stride)});
    }
  }
  if (in != out) {
    const int64_t half = (out - in) / 2;
    shortcut = builder.Node("aten::constant_pad_nd", "", {Ref(shortcut), Ints({0, 0, 0, 0, half, out - in - half})});
  }
  return builder.Relu(builder.Add(y, shortcut));
}

std::string AddLastStage(GraphBuilder& builder, std::string x) {
  x = AddBasicBlock(builder, x, 32, 64, 2);
  for (int i = 1; i < 9; ++i) x = AddBasicBlock(builder, x, 64, 64, 1);
  return x;
}

}  // namespace

SampleModule BasicBlock(int64_t channels, int64_t size, Spelling spelling, uint64_t seed) {
  GraphBuilder builder("basic_block", {channels, size, size}, seed, spelling);
  return builder.Finish(AddBasicBlock(builder, builder.input(), channels, channels, 1));
}

SampleModule ResNet56(uint64_t seed) {
  GraphBuilder builder("resnet56", {3, 32, 32}, seed, Spelling::kExported);
  std::string x = builder.Relu(builder.BatchNorm(builder.Convolution(builder.input(), 3, 16, 3, 1), 16));
  for (int i = 0; i < 9; ++i) x = AddBasicBlock(builder, x, 16, 16, 1);
  x = AddBasicBlock(builder, x, 16, 32, 2);
  for (int i = 1; i < 9; ++i) x = AddBasicBlock(builder, x, 32, 32, 1);
  x = AddLastStage(builder, x);
  x = builder.Node("aten::adaptive_avg_pool2d", "", {Ref(x), Ints({1, 1})});
  x = builder.Node("aten::flatten", "using_ints", {Ref(x), Int(1)});
  return builder.Finish(builder.Linear(x, 64, 10));
}

SampleModule ResNet56LastStage(uint64_t seed) {
  GraphBuilder builder("resnet56_last_stage", {32, 16, 16}, seed, Spelling::kExported);
  return builder.Finish(AddLastStage(builder, builder.input()));
}

SampleModule Bottleneck(uint64_t seed) {
  GraphBuilder builder("resnet50_bottleneck", {1024, 14, 14}, seed, Spelling::kExported);
  const std::string x = builder.input();
  std::string y = builder.Relu(builder.BatchNorm(builder.Convolution(x, 1024, 256, 1, 1), 256));
  y = builder.Relu(builder.BatchNorm(builder.Convolution(y, 256, 256, 3, 1), 256));
  y = builder.BatchNorm(builder.Convolution(y, 256, 1024, 1, 1), 1024, kBranchGain);
  return builder.Finish(builder.Relu(builder.Add(y, x)));
}

SampleModule InvertedResidual(uint64_t seed) {
  GraphBuilder builder("mobilenetv2_inverted_residual", {32, 28, 28}, seed, Spelling::kExported);
  const auto clamp = [&](const std::string& x) {
    return builder.Node("aten::hardtanh", "", {Ref(x), Float(0), Float(6)});
  };
  const std::string x = builder.input();
  std::string y = clamp(builder.BatchNorm(builder.Convolution(x, 32, 192, 1, 1), 192));
  y = clamp(builder.BatchNorm(builder.Convolution(y, 192, 192, 3, 1, 192), 192));
  y = builder.BatchNorm(builder.Convolution(y, 192, 32, 1, 1), 32, kBranchGain);
  return builder.Finish(builder.Add(x, y));
}

SampleModule BertLayer(int64_t sequence, uint64_t seed) {
  constexpr int64_t kWidth = 768, kHeads = 12, kInner = 3072;
  GraphBuilder builder("bert_layer", {sequence, kWidth}, seed, Spelling::kExported);
  const std::string x = builder.input();
  const std::string batch = builder.Node("aten::sym_size", "int", {Ref(x), Int(0)});
  const auto heads = [&](const std::string& value) {
    const std::string split = builder.Node(
        "aten::view", "",
        {Ref(value), Argument{ArgumentList{Ref(batch), Int(sequence), Int(kHeads), Int(kWidth / kHeads)}}});
    return builder.Node("aten::transpose", "int", {Ref(split), Int(1), Int(2)});
  };
  const std::string query = heads(builder.Linear(x, kWidth, kWidth));
  const std::string key = heads(builder.Linear(x, kWidth, kWidth));
  const std::string value = heads(builder.Linear(x, kWidth, kWidth));
  std::string y = builder.Node("aten::scaled_dot_product_attention", "", {Ref(query), Ref(key), Ref(value)});
  y = builder.Node("aten::transpose", "int", {Ref(y), Int(1), Int(2)});
  y = builder.Node("aten::reshape", "", {Ref(y), Argument{ArgumentList{Ref(batch), Int(sequence), Int(kWidth)}}});
  const std::string attended = builder.LayerNorm(builder.Add(builder.Linear(y, kWidth, kWidth), x), kWidth);
  y = builder.Node("aten::gelu", "", {Ref(builder.Linear(attended, kWidth, kInner))});
  return builder.Finish(builder.LayerNorm(builder.Add(builder.Linear(y, kInner, kWidth), attended), kWidth));
}

SampleModule Mlp(int64_t width, uint64_t seed) {
  GraphBuilder builder("mlp", {width}, seed, Spelling::kExported);
  std::string x = builder.Relu(builder.Linear(builder.input(), width, 4 * width));
  x = builder.Node("aten::gelu", "", {Ref(builder.Linear(x, 4 * width, width))});
  return builder.Finish(builder.Linear(x, width, width));
}

}  // namespace egeria::testing

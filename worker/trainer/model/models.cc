#include "worker/trainer/model/models.h"

#include <memory>
#include <utility>

#include "common/base/status.h"
#include "torch/nn/init.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/linear.h"
#include "worker/trainer/model/fused_convolution.h"

namespace egeria::trainer {
namespace {

using worker::Block;
using worker::StagedBlock;

torch::nn::Conv2d Convolution(int in, int out, int kernel, int stride) {
  torch::nn::Conv2d convolution(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
  torch::nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
  return convolution;
}

// Convolution, batch normalisation, ReLU.
class ConvBlock : public Block {
 public:
  ConvBlock(int in, int out, int stride) : conv_(Convolution(in, out, 3, stride)), norm_(out) {
    register_module("conv", conv_);
    register_module("norm", norm_);
  }
  at::Tensor forward(at::Tensor input) override { return at::relu(norm_(conv_(input))); }
  InferenceForm MakeInferenceForm() override {
    return [layer = FusedConvolution(conv_, norm_)](const at::Tensor& input) { return layer.RunWithRelu(input); };
  }

 private:
  torch::nn::Conv2d conv_;
  torch::nn::BatchNorm2d norm_;
};

// Two 3x3 convolutions around a shortcut.
class BasicBlock : public Block {
 public:
  BasicBlock(int in, int out, int stride)
      : conv1_(Convolution(in, out, 3, stride)), conv2_(Convolution(out, out, 3, 1)), norm1_(out), norm2_(out) {
    register_module("conv1", conv1_);
    register_module("norm1", norm1_);
    register_module("conv2", conv2_);
    register_module("norm2", norm2_);
    if (in != out || stride != 1) {
      shortcut_conv_ = register_module("shortcut_conv", Convolution(in, out, 1, stride));
      shortcut_norm_ = register_module("shortcut_norm", torch::nn::BatchNorm2d(out));
    }
  }
  at::Tensor forward(at::Tensor input) override {
    const at::Tensor inner = norm2_(conv2_(at::relu(norm1_(conv1_(input)))));
    const at::Tensor shortcut = shortcut_conv_.is_empty() ? input : shortcut_norm_(shortcut_conv_(input));
    return at::relu(at::add(inner, shortcut));
  }
  InferenceForm MakeInferenceForm() override {
    const FusedConvolution first(conv1_, norm1_), second(conv2_, norm2_);
    if (shortcut_conv_.is_empty()) {
      return [=](const at::Tensor& input) { return second.AddWithRelu(first.RunWithRelu(input), input); };
    }
    return [=, shortcut = FusedConvolution(shortcut_conv_, shortcut_norm_)](const at::Tensor& input) {
      return second.AddWithRelu(first.RunWithRelu(input), shortcut.Run(input));
    };
  }

 private:
  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::BatchNorm2d norm1_, norm2_;
  torch::nn::Conv2d shortcut_conv_{nullptr};
  torch::nn::BatchNorm2d shortcut_norm_{nullptr};
};

// Global average pooling and a linear classifier.
class HeadBlock : public Block {
 public:
  HeadBlock(int in, int classes) : linear_(in, classes) { register_module("linear", linear_); }
  at::Tensor forward(at::Tensor input) override {
    const at::Tensor features = at::flatten(at::adaptive_avg_pool2d(input, {1, 1}), 1);
    // The operator itself: the module's forward would show in a trace as two smaller ones.
    return at::linear(features, linear_->weight, linear_->bias);
  }

 private:
  torch::nn::Linear linear_;
};

std::vector<StagedBlock> MakeResNet(int blocks_per_stage, int channels, int classes) {
  std::vector<StagedBlock> blocks;
  blocks.push_back({"stem", "stem", std::make_shared<ConvBlock>(channels, 16, 1)});
  int in = 16;
  for (int stage = 1; stage <= 3; ++stage) {
    const int out = 8 << stage;
    for (int b = 0; b < blocks_per_stage; ++b) {
      const int stride = stage > 1 && b == 0 ? 2 : 1;
      const std::string name = absl::StrCat("stage", stage);
      blocks.push_back({absl::StrCat(name, ".block", b), name, std::make_shared<BasicBlock>(in, out, stride)});
      in = out;
    }
  }
  blocks.push_back({"head", "head", std::make_shared<HeadBlock>(in, classes)});
  return blocks;
}

std::vector<StagedBlock> MakeDigitsNet(int channels, int classes) {
  struct Row {
    int stage, out, stride;
  };
  std::vector<StagedBlock> blocks;
  int in = channels;
  int position = 0, stage = 0;
  for (const Row& row : {Row{1, 16, 1}, Row{1, 32, 1}, Row{2, 32, 1}, Row{3, 64, 2}, Row{3, 64, 1}}) {
    position = row.stage == stage ? position + 1 : 0;
    stage = row.stage;
    const std::string name = absl::StrCat("stage", stage);
    blocks.push_back(
        {absl::StrCat(name, ".block", position), name, std::make_shared<ConvBlock>(in, row.out, row.stride)});
    in = row.out;
  }
  blocks.push_back({"head", "head", std::make_shared<HeadBlock>(in, classes)});
  return blocks;
}

}  // namespace

absl::StatusOr<std::vector<StagedBlock>> MakeModel(const std::string& name, int channels, int classes) {
  if (name == "resnet20") return MakeResNet(3, channels, classes);
  if (name == "resnet56") return MakeResNet(9, channels, classes);
  if (name == "digitsnet") return MakeDigitsNet(channels, classes);
  return NamedError(absl::StatusCode::kInvalidArgument, "UNKNOWN_MODEL", "'", name,
                    "' is no model: use resnet20, resnet56 or digitsnet");
}

}  // namespace egeria::trainer

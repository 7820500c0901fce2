#include "tests/support/toy_model.h"

#include <mutex>
#include <string>
#include <utility>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Parallel.h"
#include "common/base/status.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/linear.h"

namespace egeria::testing {
namespace {

class ToyBlock : public worker::Block {
 public:
  ToyBlock(int in, int out, double dropout)
      : conv_(torch::nn::Conv2dOptions(in, out, 3).padding(1)), norm_(out), dropout_(dropout) {
    register_module("conv", conv_);
    register_module("norm", norm_);
    register_module("dropout", dropout_);
  }
  at::Tensor forward(at::Tensor input) override { return dropout_(at::relu(norm_(conv_(input)))); }

 private:
  torch::nn::Conv2d conv_;
  torch::nn::BatchNorm2d norm_;
  torch::nn::Dropout dropout_;
};

class ToyHead : public worker::Block {
 public:
  explicit ToyHead(int in) : linear_(in * 36, 5) { register_module("linear", linear_); }
  at::Tensor forward(at::Tensor input) override { return linear_(at::flatten(input, 1)); }

 private:
  torch::nn::Linear linear_;
};

}  // namespace

std::unique_ptr<ToyModel> ToyModel::Make(int blocks, uint64_t seed, double dropout) {
  static std::mutex mutex;  // ranks that are threads share torch's default generator
  const std::lock_guard<std::mutex> lock(mutex);
  at::set_num_threads(1);  // tensors this small are slower on more
  at::manual_seed(seed);
  auto model = std::make_unique<ToyModel>();
  int in = 3;
  for (int b = 0; b < blocks; ++b) {
    const int out = 4 * (b + 1);
    const std::string name = "block" + std::to_string(b);
    model->modules.emplace_back(
        name, std::vector<worker::LayerModule::NamedBlock>{{name, std::make_shared<ToyBlock>(in, out, dropout)}});
    in = out;
  }
  model->modules.emplace_back("head",
                              std::vector<worker::LayerModule::NamedBlock>{{"head", std::make_shared<ToyHead>(in)}});
  std::vector<at::Tensor> parameters;
  for (const auto& module : model->modules) {
    for (const auto& parameter : module.parameters()) parameters.push_back(parameter.tensor);
  }
  model->optimizer =
      std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
  torch::optim::SGD* const optimizer = model->optimizer.get();
  model->freezer =
      std::make_unique<worker::ModuleFreezer>(&model->modules, [optimizer](const std::vector<at::Tensor>& unfrozen) {
        for (const at::Tensor& parameter : unfrozen) optimizer->state().erase(parameter.unsafeGetTensorImpl());
      });
  return model;
}

at::Tensor ToyModel::Momentum(const at::Tensor& parameter) {
  const auto found = optimizer->state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer->state().end()) return {};
  return static_cast<const torch::optim::SGDParamState&>(*found->second).momentum_buffer();
}

std::vector<at::Tensor> ToyModel::State(size_t first, size_t last) {
  std::vector<at::Tensor> state;
  for (size_t i = first; i < last; ++i) {
    for (const auto& parameter : modules[i].parameters()) {
      state.push_back(parameter.tensor.detach().clone());
      const at::Tensor momentum = Momentum(parameter.tensor);
      if (momentum.defined()) state.push_back(momentum.clone());
    }
    for (const auto& buffer : modules[i].buffers()) state.push_back(buffer.tensor.clone());
  }
  return state;
}

ToyBatch MakeToyBatch(int64_t size, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return {at::randn({size, 3, 6, 6}, generator), at::randint(0, 5, {size}, generator, at::kLong)};
}

bool BitEqual(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return true;
}

}  // namespace egeria::testing

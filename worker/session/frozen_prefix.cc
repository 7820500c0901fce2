#include "worker/session/frozen_prefix.h"

#include <sstream>
#include <utility>

#include "ATen/Parallel.h"
#include "ATen/Version.h"
#include "ATen/core/grad_mode.h"
#include "torch/headeronly/version.h"
#include "worker/cache/client/tensor_hash.h"

namespace egeria::worker {

namespace {

// A look at the weights compares an eighth of them, which takes less than reading them once to compute with them; it
// compares all where they are small.
constexpr size_t kLooks = 8;
constexpr size_t kWholeBytes = size_t{1} << 20;

std::vector<at::Tensor> TensorsOf(std::span<const LayerModule> modules) {
  std::vector<at::Tensor> tensors;
  for (const LayerModule& module : modules) {
    for (const NamedTensor& parameter : module.parameters()) tensors.push_back(parameter.tensor);
    for (const NamedTensor& buffer : module.buffers()) tensors.push_back(buffer.tensor);
  }
  return tensors;
}

}  // namespace

FrozenPrefix::FrozenPrefix(std::span<const LayerModule> modules) : modules_(modules), tensors_(TensorsOf(modules)) {}

at::Tensor FrozenPrefix::Run(const at::Tensor& input) const {
  const at::NoGradGuard no_gradients;
  at::Tensor output = input;
  for (const LayerModule& module : modules_) output = module.Run(std::move(output));
  return output;
}

cache::ContentWatch FrozenPrefix::Watch() const { return cache::ContentWatch(tensors_, kLooks, kWholeBytes); }

cache::Fingerprint FrozenPrefix::FingerprintFor(const at::Tensor& input) const {
  std::ostringstream text;
  // A library may compute the same sum in another order for another batch, machine or number of threads.
  text << TORCH_VERSION << " " << at::get_cpu_capability() << " " << at::get_num_threads() << "\n"
       << input.options() << " " << input.sizes() << "\n";
  for (const LayerModule& module : modules_) {
    text << module.name() << "\n";
    for (const std::shared_ptr<Block>& block : module.blocks()) {
      text << *block << "\n";  // the text has the settings of torch's own modules
      for (const auto& inner : block->named_modules())
        text << inner.key() << " " << inner.value()->is_training() << "\n";
    }
    for (const NamedTensor& parameter : module.parameters()) text << parameter.name << "\n";
    for (const NamedTensor& buffer : module.buffers()) text << buffer.name << "\n";
  }
  return cache::FingerprintOf(text.str(), tensors_);
}

}  // namespace egeria::worker

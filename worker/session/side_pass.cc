#include "worker/session/side_pass.h"

#include <mutex>

#include "ATen/Context.h"
#include "ATen/core/grad_mode.h"
#include "worker/session/row_proof.h"

namespace egeria::worker {
namespace {

at::Generator GeneratorOf(c10::Device device) { return at::globalContext().defaultGenerator(device); }

at::Tensor RandomState(c10::Device device) {
  at::Generator generator = GeneratorOf(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state().clone();
}

}  // namespace

SidePass::SidePass(const std::vector<LayerModule>& modules, c10::Device device)
    : device_(device), random_state_(RandomState(device)) {
  for (const LayerModule& module : modules) {
    for (const NamedTensor& buffer : module.buffers()) buffers_.emplace_back(buffer.tensor, buffer.tensor.clone());
  }
}

SidePass::~SidePass() {
  {
    at::Generator generator = GeneratorOf(device_);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(random_state_);
  }
  at::NoGradGuard no_gradients;
  for (auto& [buffer, value] : buffers_) {
    // A write that changes nothing would count as a write, and the cache of frozen activations would be given up.
    if (!SameBits(buffer, value)) buffer.copy_(value);
  }
  for (at::Tensor& parameter : asked_) parameter.set_requires_grad(false);
}

void SidePass::AskForGradient(at::Tensor parameter) {
  if (parameter.requires_grad()) return;
  parameter.set_requires_grad(true);
  asked_.push_back(std::move(parameter));
}

}  // namespace egeria::worker

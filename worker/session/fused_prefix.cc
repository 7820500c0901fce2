#include "worker/session/fused_prefix.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "worker/commit/torch_status.h"

namespace egeria::worker {
namespace {

constexpr int kRounds = 3;
constexpr double kTolerance = 1e-4;  // results of forms differ by at most this part of the norm

template <typename Function>
double Seconds(const Function& function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

bool Fits(const at::Tensor& input) { return input.is_cpu() && input.scalar_type() == at::kFloat && input.dim() == 4; }

}  // namespace

void FusedPrefix::Follow(std::span<const LayerModule> modules) {
  modules_ = modules;
  state_ = State::kUnknown;
  forms_.clear();
  contents_.reset();
  exact_.reset();
  if (!modules.empty()) exact_.emplace(modules);
}

at::Tensor FusedPrefix::Run(const at::Tensor& input) {
  const at::NoGradGuard no_gradients;
  if (is_fused() && Fits(input)) {
    if (const bool touched = !contents_->Touched().empty(); touched || !contents_->Unchanged()) MakeForms();
    return RunForms(input);
  }
  at::Tensor output = exact_->Run(input);
  if (state_ == State::kUnknown) Choose(input, output);
  return output;
}

bool FusedPrefix::MakeForms() {
  forms_.clear();
  contents_.emplace(exact_->Watch());
  for (const LayerModule& module : modules_) {
    for (const std::shared_ptr<Block>& block : module.blocks()) {
      forms_.push_back(block->MakeInferenceForm());
      if (forms_.back() == nullptr) return false;
    }
  }
  return true;
}

at::Tensor FusedPrefix::RunForms(const at::Tensor& input) const {
  at::Tensor output = input.clone(at::MemoryFormat::ChannelsLast);  // the first form may write to it
  for (const Block::InferenceForm& form : forms_) output = form(std::move(output));
  return output.contiguous();
}

void FusedPrefix::Choose(const at::Tensor& input, const at::Tensor& exact) {
  if (!Fits(input)) return Decide(State::kExact, "the batch is no float32 image in host memory");
  try {
    if (!MakeForms()) return Decide(State::kExact, "a block of theirs has no inference form");
    const at::Tensor difference = (RunForms(input) - exact).abs();
    if (difference.norm().item<double>() > kTolerance * exact.norm().item<double>()) {
      return Decide(State::kExact, "their inference form computes something else");
    }
    double fused_seconds = std::numeric_limits<double>::max(), exact_seconds = fused_seconds;
    for (int i = 0; i < kRounds; ++i) {
      fused_seconds = std::min(fused_seconds, Seconds([&] { RunForms(input); }));
      exact_seconds = std::min(exact_seconds, Seconds([&] { exact_->Run(input); }));
    }
    const double share = fused_seconds / exact_seconds;
    if (share > worth_) {
      return Decide(State::kExact, absl::StrFormat("their inference form takes %.2f of the time", share));
    }
    Decide(State::kFused, absl::StrFormat("the largest difference on a real batch is %.1g of %.2g",
                                          difference.max().item<double>(), exact.abs().max().item<double>()));
  } catch (const std::exception& error) {
    Decide(State::kExact, MessageOf(error));
  }
}

void FusedPrefix::Decide(State state, const std::string& why) {
  state_ = state;
  if (tells_) LogInfo("frozen layer modules run ", state == State::kFused ? "fused: " : "as they are: ", why);
}

}  // namespace egeria::worker

#include "worker/trainer/stop_signal.h"

#include <signal.h>

#include <exception>
#include <utility>
#include <vector>

#include "ATen/ops/full.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/commit/torch_status.h"

namespace egeria::trainer {
namespace {

constexpr int64_t kAskEvery = 8;  // steps; an all-reduce takes as long as a step of a small network

volatile sig_atomic_t g_signal_has_come = 0;

void NoteSignal(int) { g_signal_has_come = 1; }

}  // namespace

StopSignal::StopSignal(bool enabled, worker::ProcessGroupPtr group) : enabled_(enabled), group_(std::move(group)) {
  if (!enabled_) return;
  g_signal_has_come = 0;
  struct sigaction action = {};
  action.sa_handler = NoteSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
}

absl::StatusOr<bool> StopSignal::Agreed(int64_t step) {
  if (!enabled_ || step % kAskEvery != 0) return false;
  bool any = g_signal_has_come != 0;
  if (group_ != nullptr) {
    try {
      std::vector<at::Tensor> ranks = {at::full({1}, any ? 1.0F : 0.0F)};
      group_->allreduce(ranks)->wait();
      any = ranks[0].item<float>() > 0;
    } catch (const std::exception& error) {
      return NamedError(absl::StatusCode::kInternal, "STEP_FAILED", "step ", step, ": ", worker::MessageOf(error));
    }
  }
  if (any) LogInfo("a signal asks to stop: all ranks stop after step ", step);
  return any;
}

}  // namespace egeria::trainer

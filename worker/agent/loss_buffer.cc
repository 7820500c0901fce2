#include "worker/agent/loss_buffer.h"

namespace egeria::worker {

void LossBuffer::Add(int64_t step, float loss) {
  if (!losses_.empty() && step <= losses_.back().step) return;
  if (losses_.size() == kCapacity) {
    DropOldest();
    ++dropped_;
  }
  losses_.push_back({step, loss});
}

LossRun LossBuffer::Next() {
  LossRun run;
  if (!HasNext()) return run;
  run.first_step = losses_[handed_out_].step;
  for (; HasNext(); ++handed_out_) {
    const Loss& loss = losses_[handed_out_];
    if (loss.step != run.first_step + static_cast<int64_t>(run.values.size())) break;
    run.values.push_back(loss.value);
  }
  return run;
}

void LossBuffer::Forget(int64_t step) {
  while (!losses_.empty() && losses_.front().step <= step) DropOldest();
}

void LossBuffer::DropOldest() {
  losses_.pop_front();
  if (handed_out_ > 0) --handed_out_;
}

}  // namespace egeria::worker

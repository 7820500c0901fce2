#include "worker/trainer/data/upcoming_batches.h"

namespace egeria::trainer {

const std::vector<std::vector<uint64_t>>& UpcomingBatches::From(int64_t step) {
  if (!batches_.empty() && step == first_ + 1) {
    batches_.erase(batches_.begin());
  } else if (step != first_) {
    batches_.clear();
  }
  first_ = step;
  while (batches_.size() < count_) {
    const std::vector<int64_t> batch = sampler_.Batch(first_ + static_cast<int64_t>(batches_.size()), rank_);
    batches_.emplace_back(batch.begin(), batch.end());
  }
  return batches_;
}

}  // namespace egeria::trainer

#include "worker/trainer/data/sampler.h"

#include <numeric>
#include <utility>

#include "common/base/status.h"
#include "worker/trainer/data/random.h"

namespace egeria::trainer {

absl::StatusOr<Sampler> Sampler::Make(int64_t samples, int world_size, int batch_size, uint64_t seed) {
  if (batch_size < 1 || samples < int64_t{1} * world_size * batch_size) {
    return NamedError(absl::StatusCode::kInvalidArgument, "TOO_FEW_SAMPLES", samples,
                      " training samples are less than one step of ", world_size, " ranks with batches of ", batch_size,
                      ": use a smaller --batch-size");
  }
  return Sampler(samples, world_size, batch_size, seed);
}

std::vector<int64_t> Sampler::Batch(int64_t step, int rank) {
  const int64_t epoch = step / steps_per_epoch();
  if (epoch != epoch_) {
    permutation_.resize(samples_);
    std::iota(permutation_.begin(), permutation_.end(), int64_t{0});
    Random random({seed_, 0x73616d706c657273, static_cast<uint64_t>(epoch)});
    for (int64_t i = samples_ - 1; i > 0; --i) {
      std::swap(permutation_[i], permutation_[random.Below(static_cast<uint64_t>(i) + 1)]);
    }
    epoch_ = epoch;
  }
  const int64_t begin = ((step % steps_per_epoch()) * world_size_ + rank) * batch_size_;
  return {permutation_.begin() + begin, permutation_.begin() + begin + batch_size_};
}

}  // namespace egeria::trainer

#ifndef EGERIA_WORKER_TRAINER_DATA_SAMPLER_H_
#define EGERIA_WORKER_TRAINER_DATA_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace egeria::trainer {

// Says which samples each rank takes at each step. Every epoch has its own permutation, drawn from (seed, epoch)
// alone and so the same on all ranks; step s of the epoch uses positions s*R*b to (s+1)*R*b - 1 of it, rank r
// the r-th b of them. R ranks with batches of b thus see, together, what one rank with batches of R*b sees.
// The samples that are left at the end of an epoch, fewer than one global batch, are dropped.
//
// A sampler has no position: the batch of any step can be asked for, which makes resuming exact. Thread-compatible.
class Sampler {
 public:
  // Errors: INVALID_ARGUMENT [TOO_FEW_SAMPLES] less than one global batch.
  static absl::StatusOr<Sampler> Make(int64_t samples, int world_size, int batch_size, uint64_t seed);

  int64_t steps_per_epoch() const { return samples_ / (int64_t{1} * world_size_ * batch_size_); }

  // Indices of the batch that `rank` takes in step `step` (from 0, over all epochs).
  std::vector<int64_t> Batch(int64_t step, int rank);

 private:
  Sampler(int64_t samples, int world_size, int batch_size, uint64_t seed)
      : samples_(samples), world_size_(world_size), batch_size_(batch_size), seed_(seed) {}

  int64_t samples_;
  int world_size_;
  int batch_size_;
  uint64_t seed_;
  int64_t epoch_ = -1;  // that permutation_ is of
  std::vector<int64_t> permutation_;
};

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_DATA_SAMPLER_H_

#ifndef EGERIA_WORKER_TRAINER_DATA_UPCOMING_BATCHES_H_
#define EGERIA_WORKER_TRAINER_DATA_UPCOMING_BATCHES_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "worker/trainer/data/sampler.h"

namespace egeria::trainer {

// The samples of one rank's next batches. Has a sampler of its own, so that looking into the next epoch does not cost
// the present one's permutation. Thread-compatible.
class UpcomingBatches {
 public:
  UpcomingBatches(Sampler sampler, int rank, size_t count) : sampler_(std::move(sampler)), rank_(rank), count_(count) {}

  // The batches of `step`, of the step after it, and so on. Cheap for steps that rise by one.
  const std::vector<std::vector<uint64_t>>& From(int64_t step);

 private:
  Sampler sampler_;
  const int rank_;
  const size_t count_;
  int64_t first_ = 0;  // step of the first of batches_
  std::vector<std::vector<uint64_t>> batches_;
};

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_DATA_UPCOMING_BATCHES_H_

#ifndef EGERIA_WORKER_TRAINER_BATCH_LOADER_H_
#define EGERIA_WORKER_TRAINER_BATCH_LOADER_H_

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/dataset.h"

namespace egeria::trainer {

struct Batch {
  at::Tensor images;       // float32, n x channels x height x width
  at::Tensor labels;       // int64, n
  at::Tensor host_images;  // the images in host memory
};

// Images `indices` of `set` on `device`; see FillBatch(). From pinned memory, without waiting, where the device
// is an accelerator. Exceptions of torch pass through.
Batch LoadBatch(const ImageSet& set, const Normalisation& normalisation, const std::vector<int64_t>& indices,
                const Augmentation* augmentation, int64_t epoch, c10::Device device);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_BATCH_LOADER_H_

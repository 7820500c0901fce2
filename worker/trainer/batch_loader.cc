#include "worker/trainer/batch_loader.h"

#include "ATen/DeviceAccelerator.h"
#include "ATen/ops/empty.h"

namespace egeria::trainer {

Batch LoadBatch(const ImageSet& set, const Normalisation& normalisation, const std::vector<int64_t>& indices,
                const Augmentation* augmentation, int64_t epoch, c10::Device device) {
  const bool accelerated = at::accelerator::isAccelerator(device.type());
  const int64_t count = static_cast<int64_t>(indices.size());
  const at::TensorOptions host = at::TensorOptions().pinned_memory(accelerated);
  Batch batch{at::empty({count, set.channels, set.height, set.width}, host.dtype(at::kFloat)),
              at::empty({count}, host.dtype(at::kLong)), at::Tensor()};
  FillBatch(set, normalisation, indices, augmentation, epoch, batch.images.mutable_data_ptr<float>(),
            batch.labels.mutable_data_ptr<int64_t>());
  batch.host_images = batch.images;
  if (!accelerated) return batch;
  return {batch.images.to(device, /*non_blocking=*/true), batch.labels.to(device, /*non_blocking=*/true),
          batch.host_images};
}

}  // namespace egeria::trainer

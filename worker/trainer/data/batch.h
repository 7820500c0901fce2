#ifndef EGERIA_WORKER_TRAINER_DATA_BATCH_H_
#define EGERIA_WORKER_TRAINER_DATA_BATCH_H_

#include <cstdint>
#include <vector>

#include "worker/trainer/data/dataset.h"

namespace egeria::trainer {

// Random crop out of the image padded with zeros on each side, and a flip from left to right in half of the
// cases. A function of (seed, epoch, image index) alone: it has no state to save, and any rank would draw the
// same for the same image.
struct Augmentation {
  int padding = 0;
  bool flip = false;
  uint64_t seed = 0;
};

// Writes images `indices` of `set`, augmented (if `augmentation` is given) and normalised, one after the
// other: indices.size() x channels x height x width floats at `images`, as many numbers at `labels`.
void FillBatch(const ImageSet& set, const Normalisation& normalisation, const std::vector<int64_t>& indices,
               const Augmentation* augmentation, int64_t epoch, float* images, int64_t* labels);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_DATA_BATCH_H_

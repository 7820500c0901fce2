#include "worker/trainer/data/batch.h"

#include "worker/trainer/data/random.h"

namespace egeria::trainer {
namespace {

struct Placement {
  int dx = 0;
  int dy = 0;
  bool mirrored = false;
};

Placement Draw(const Augmentation& augmentation, int64_t epoch, int64_t index) {
  Random random({augmentation.seed, 0x61756766656e7431, static_cast<uint64_t>(epoch), static_cast<uint64_t>(index)});
  const uint64_t span = 2 * static_cast<uint64_t>(augmentation.padding) + 1;
  Placement placement;
  placement.dx = static_cast<int>(random.Below(span)) - augmentation.padding;
  placement.dy = static_cast<int>(random.Below(span)) - augmentation.padding;
  placement.mirrored = augmentation.flip && random.Below(2) == 1;
  return placement;
}

}  // namespace

void FillBatch(const ImageSet& set, const Normalisation& normalisation, const std::vector<int64_t>& indices,
               const Augmentation* augmentation, int64_t epoch, float* images, int64_t* labels) {
  for (const int64_t index : indices) {
    const Placement placement = augmentation == nullptr ? Placement{} : Draw(*augmentation, epoch, index);
    const uint8_t* source = set.pixels.data() + index * set.image_bytes();
    for (int c = 0; c < set.channels; ++c) {
      const float factor = 1.0f / (normalisation.scale * normalisation.deviation[c]);
      const float offset = -normalisation.mean[c] / normalisation.deviation[c];
      for (int y = 0; y < set.height; ++y) {
        const int from_y = y + placement.dy;
        for (int x = 0; x < set.width; ++x) {
          const int from_x = (placement.mirrored ? set.width - 1 - x : x) + placement.dx;
          const bool inside = from_y >= 0 && from_y < set.height && from_x >= 0 && from_x < set.width;
          // Padding is black before normalisation, as in the usual recipe.
          const float pixel = inside ? source[(c * set.height + from_y) * set.width + from_x] : 0.0f;
          *images++ = pixel * factor + offset;
        }
      }
    }
    *labels++ = set.labels[index];
  }
}

}  // namespace egeria::trainer

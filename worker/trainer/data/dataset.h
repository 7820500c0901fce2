#ifndef EGERIA_WORKER_TRAINER_DATA_DATASET_H_
#define EGERIA_WORKER_TRAINER_DATA_DATASET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace egeria::trainer {

// Labelled images in host memory: `pixels` holds size() images of channels x height x width bytes.
struct ImageSet {
  int channels = 0;
  int height = 0;
  int width = 0;
  int classes = 0;
  std::vector<uint8_t> pixels;
  std::vector<uint8_t> labels;

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
  int64_t image_bytes() const { return int64_t{1} * channels * height * width; }
};

// A pixel becomes (pixel / scale - mean[channel]) / deviation[channel].
struct Normalisation {
  float scale = 255;
  std::vector<float> mean;
  std::vector<float> deviation;
};

struct Task {
  ImageSet train;
  ImageSet validation;
  Normalisation normalisation;
};

// CIFAR-10 in its standard binary form: data_batch_1.bin to data_batch_5.bin and test_batch.bin, in `folder`
// or in `folder`/cifar-10-batches-bin.
// Errors: NOT_FOUND [NO_DATA] a file is missing; INVALID_ARGUMENT [TRUNCATED_DATA] a file is not a whole
// number of records; [BAD_LABEL].
absl::StatusOr<Task> LoadCifar10(const std::string& folder);

// The digits of deploy/digits/export_digits.py; docs/reference/formats/digits.md. `path` is the file, or a folder with
// digits.bin in it. Errors: NOT_FOUND [NO_DATA]; INVALID_ARGUMENT [BAD_FORMAT], [TRUNCATED_DATA], [BAD_LABEL].
absl::StatusOr<Task> LoadDigits(const std::string& path);

// Keeps the first `count` images; all if there are no more than that, or if count is 0.
void Truncate(int64_t count, ImageSet* set);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_DATA_DATASET_H_

#ifndef EGERIA_WORKER_TRAINER_MODEL_MODELS_H_
#define EGERIA_WORKER_TRAINER_MODEL_MODELS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/freeze/layer_module.h"

namespace egeria::trainer {

// A model as a chain of blocks, each with the stage that it belongs to. Weights come from torch's default
// generator, so that one seed gives one model.
//
// "resnet20", "resnet56": the CIFAR residual networks of He et al. with 3 stages of 3 or 9 basic blocks of 16,
//   32 and 64 channels. Shortcuts that change shape are 1x1 convolutions with batch normalisation (option B).
// "digitsnet": five 3x3 convolutions with batch normalisation for 8x8 images, 16 to 64 channels, and a linear
//   head.
//
// Input: n x channels x height x width; output: n x classes logits.
// Errors: INVALID_ARGUMENT [UNKNOWN_MODEL].
absl::StatusOr<std::vector<worker::StagedBlock>> MakeModel(const std::string& name, int channels, int classes);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_MODEL_MODELS_H_

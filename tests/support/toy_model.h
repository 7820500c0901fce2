#ifndef EGERIA_TESTS_SUPPORT_TOY_MODEL_H_
#define EGERIA_TESTS_SUPPORT_TOY_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "torch/optim/sgd.h"
#include "worker/freeze/gradient_reducer.h"
#include "worker/freeze/module_freezer.h"

namespace egeria::testing {

// A small chain of convolution blocks with batch normalisation and dropout, one block per layer module, and a
// linear head, for 3 x 6 x 6 images and 5 classes; with SGD, momentum and weight decay. Equal for equal seeds.
// Has all that freezing can get wrong.
struct ToyModel {
  std::vector<worker::LayerModule> modules;
  std::unique_ptr<torch::optim::SGD> optimizer;
  std::unique_ptr<worker::ModuleFreezer> freezer;

  // `blocks` convolution blocks of 4, 8, 12, ... channels.
  static std::unique_ptr<ToyModel> Make(int blocks, uint64_t seed, double dropout = 0.1);

  at::Tensor Momentum(const at::Tensor& parameter);
  // All parameters, buffers and momenta of modules first..last-1, cloned.
  std::vector<at::Tensor> State(size_t first, size_t last);
};

struct ToyBatch {
  at::Tensor images;  // n x 3 x 6 x 6
  at::Tensor labels;  // n
};
// A function of its arguments; uses no global generator.
ToyBatch MakeToyBatch(int64_t size, uint64_t seed);

// True if the two lists are equal to the bit.
bool BitEqual(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_TOY_MODEL_H_

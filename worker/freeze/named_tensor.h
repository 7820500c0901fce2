#ifndef EGERIA_WORKER_FREEZE_NAMED_TENSOR_H_
#define EGERIA_WORKER_FREEZE_NAMED_TENSOR_H_

#include <string>

#include "ATen/core/Tensor.h"

namespace egeria::worker {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_FREEZE_NAMED_TENSOR_H_

#ifndef EGERIA_WORKER_PYTHON_NATIVE_REFERENCE_COSTS_H_
#define EGERIA_WORKER_PYTHON_NATIVE_REFERENCE_COSTS_H_

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "common/reference/selection.h"
#include "worker/freeze/named_tensor.h"

namespace egeria::python {

// Measures what a controller on this machine would measure of each reference backend on a sample of a layer module,
// with as many threads as the calling thread's torch has.
//
// `weights` have the names that the graph gives them, and others may be among them; `inputs` are those of b >= 2
// samples, in the graph's order. All are on the host. The result has one entry per backend, the float32 baseline last.
// Errors: INVALID_ARGUMENT where the graph, the weights or the inputs do not fit; INTERNAL [REFERENCE_FAILED].
absl::StatusOr<std::vector<reference::BackendMeasurement>> MeasureReference(
    const std::string& graph_json, const std::vector<worker::NamedTensor>& weights,
    const std::vector<at::Tensor>& inputs);

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_REFERENCE_COSTS_H_

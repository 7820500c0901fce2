#ifndef EGERIA_COMMON_REFERENCE_REFERENCE_MODULE_H_
#define EGERIA_COMMON_REFERENCE_REFERENCE_MODULE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/graph/graph.h"
#include "common/reference/backend.h"
#include "common/reference/lowering.h"
#include "common/reference/program.h"
#include "common/tensor/wire_tensor.h"

namespace egeria::reference {

// One layer module's reference model: its graph, a snapshot of its weights, and the programs that backends
// made of the two. The graph is immutable and may be read by any thread; all else is owned by the
// evaluator's thread. Packs a backend's program at its first use after a snapshot.
class ReferenceModule {
 public:
  // Errors: those of Bind().
  static absl::StatusOr<std::shared_ptr<ReferenceModule>> Create(const graph::ModuleGraph& graph,
                                                                 const RunLimits& limits = {});

  // Any thread.
  const graph::ModuleGraph& graph() const { return graph_; }
  const std::vector<TensorSpec>& weight_specs() const { return graph_.weights; }

  // Takes weights that MatchWeights() has ordered; they stay alive while they are used. Programs are packed
  // anew when they are next used; activation ranges stay, since the next snapshot's are much the same.
  void SetWeights(std::vector<WireTensor> weights);

  // Runs the module. Errors: FAILED_PRECONDITION [NO_REFERENCE] without weights; those of Backend::Pack and
  // RunProgram; INTERNAL [REFERENCE_FAILED] where the inputs do not fit the graph's specs.
  absl::StatusOr<std::vector<at::Tensor>> Run(const Backend& backend, const std::vector<at::Tensor>& inputs);

  // Runs the baseline and widens the activation ranges by what is seen. Programs in 8 bits are packed anew at
  // their next use. Errors: those of Run().
  absl::StatusOr<std::vector<at::Tensor>> Calibrate(const std::vector<at::Tensor>& inputs);

  // Share of 8-bit values at the end of their range since the last Calibrate(); 0 if there were none.
  double saturated_share() const;

 private:
  ReferenceModule(const graph::ModuleGraph& graph, LoweredGraph lowered, const RunLimits& limits);
  absl::StatusOr<const Program*> ProgramOf(const Backend& backend);
  absl::Status CheckInputs(const std::vector<at::Tensor>& inputs) const;

  const graph::ModuleGraph graph_;
  const LoweredGraph lowered_;
  const RunLimits limits_;
  const std::unique_ptr<Backend> baseline_;
  std::vector<bool> calibrated_slots_;  // the slots whose ranges a quantising backend may ask for

  bool has_weights_ = false;
  std::vector<at::Tensor> weights_;
  std::vector<ActivationRange> ranges_;  // by slot
  std::shared_ptr<SaturationCount> saturation_;
  std::map<std::string, absl::StatusOr<Program>> programs_;  // by the backend's name
};

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_REFERENCE_MODULE_H_

#ifndef EGERIA_COMMON_REFERENCE_BACKEND_H_
#define EGERIA_COMMON_REFERENCE_BACKEND_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/reference/lowering.h"
#include "common/reference/program.h"

namespace egeria::reference {

// Smallest and largest value seen in a slot, over all calibration runs.
struct ActivationRange {
  float low = std::numeric_limits<float>::infinity();
  float high = -std::numeric_limits<float>::infinity();
  bool known() const { return low <= high; }
};

// How often 8-bit values hit the end of their range, counted while a program runs. Owned by one thread.
struct SaturationCount {
  int64_t elements = 0;
  int64_t saturated = 0;
};

// The inputs from which a backend packs a module.
struct PackInput {
  const LoweredGraph* graph = nullptr;
  std::vector<at::Tensor> weights;                       // in the graph's order
  const std::vector<ActivationRange>* ranges = nullptr;  // by slot; for quantising backends
  std::shared_ptr<SaturationCount> saturation;           // filled by programs of quantising backends
};

// One way to run a module: packs its weights into a program. Thread-safe (stateless).
class Backend {
 public:
  virtual ~Backend() = default;
  // Distinguishes variants, as in "int8/f32-residual".
  virtual const std::string& name() const = 0;
  // "int8", "bf16", "prepacked" or "aten".
  virtual const std::string& family() const = 0;
  // Folds, converts and reorders the weights; may take as long as a few evaluations. The program keeps what
  // it needs of the input alive.
  // Errors: UNIMPLEMENTED where this build or machine lacks an operator, or nothing in the graph profits;
  // FAILED_PRECONDITION a range is missing; INTERNAL [REFERENCE_FAILED] torch refused.
  virtual absl::StatusOr<Program> Pack(const PackInput& input) const = 0;
};

// The graph node by node through ATen in float32: the baseline, available always.
std::unique_ptr<Backend> MakeAtenBackend();
// Folded and fused, through oneDNN's pointwise operators with weights in their layout; float32.
std::unique_ptr<Backend> MakePrepackedBackend();
// The same in bfloat16.
std::unique_ptr<Backend> MakeBfloat16Backend();
// Convolutions and linears in 8 bits with per-channel weights, everything else in float32. With
// `float_residual` the sums of residual blocks stay in float32: a little slower, much less noise.
std::unique_ptr<Backend> MakeInt8Backend(bool float_residual);

// The backends of these families, in this order. Errors: INVALID_ARGUMENT for a name that is none.
absl::StatusOr<std::vector<std::unique_ptr<Backend>>> MakeBackends(const std::vector<std::string>& families);

// A program without steps: slots, weights, inputs and outputs are those of the graph.
Program MakeProgram(const PackInput& input);

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_BACKEND_H_

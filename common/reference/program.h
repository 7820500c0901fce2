#ifndef EGERIA_COMMON_REFERENCE_PROGRAM_H_
#define EGERIA_COMMON_REFERENCE_PROGRAM_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

// A backend turns a module graph into a program: steps over numbered slots.
namespace egeria::reference {

// The values of one run, by slot.
using Frame = std::vector<c10::IValue>;

struct Step {
  std::string label;                // for messages: the operator, or what was fused
  std::vector<int> reads, writes;   // slots; `writes` are checked against the limits afterwards
  std::function<void(Frame&)> run;  // may throw
  std::vector<int> dead;            // slots that nobody reads after this step; see FindDeadValues()
};

struct Program {
  Frame initial;                     // one entry per slot: constants and weights, or None
  std::vector<int> inputs, outputs;  // slots
  std::vector<Step> steps;

  int AddSlot() {
    initial.emplace_back();
    return static_cast<int>(initial.size()) - 1;
  }
  // Fills Step::dead, so that a run holds each value only as long as it is needed, and lets go of constants
  // that no step reads. Call when complete.
  void FindDeadValues();
};

// Bounds on one run; what exceeds them is refused with [GRAPH_TOO_LARGE].
struct RunLimits {
  int64_t max_elements = int64_t{1} << 28;  // limit for one value, also for a view
  size_t max_bytes = size_t{4} << 30;       // limit for all values that are held at once
  absl::Duration max_cpu_time = absl::Seconds(60);
};

// Called with every input and every value that a step writes.
using Observer = std::function<void(int slot, const c10::IValue& value)>;

// Runs the program in inference mode, without gradients. The caller has checked the inputs against the specs.
// Errors: RESOURCE_EXHAUSTED [GRAPH_TOO_LARGE]; INTERNAL [REFERENCE_FAILED] whatever a step threw.
absl::StatusOr<std::vector<at::Tensor>> RunProgram(const Program& program, const std::vector<at::Tensor>& inputs,
                                                   const RunLimits& limits, const Observer& observer = nullptr);

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_PROGRAM_H_

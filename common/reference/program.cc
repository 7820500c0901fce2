#include "common/reference/program.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/reference/memory_budget.h"
#include "common/reference/operator_guards.h"
#include "common/reference/tensor_bridge.h"
#include "common/thread/thread.h"

namespace egeria::reference {
namespace {

void CheckTensor(const at::Tensor& tensor, const RunLimits& limits) {
  TORCH_CHECK(tensor.defined(), "the operator gave no tensor");
  CheckExtent(tensor, limits.max_elements);
}

void CheckValue(const c10::IValue& value, const RunLimits& limits) {
  if (value.isTensor()) {
    CheckTensor(value.toTensor(), limits);
  } else if (value.isTensorList()) {
    const c10::List<at::Tensor> list = value.toTensorList();
    for (size_t i = 0; i < list.size(); ++i) CheckTensor(list.get(i), limits);
  }
}

void RunSteps(const Program& program, const RunLimits& limits, const Observer& observer, Frame& frame,
              const char** label) {
  const absl::Duration start = ThreadCpuTime();
  for (const Step& step : program.steps) {
    *label = step.label.c_str();
    step.run(frame);
    for (int slot : step.writes) {
      CheckValue(frame[slot], limits);
      if (observer) observer(slot, frame[slot]);
    }
    for (int slot : step.dead) frame[slot] = c10::IValue();
    if (ThreadCpuTime() - start > limits.max_cpu_time) {
      throw GraphTooLarge(absl::StrCat("the module takes more than ", absl::FormatDuration(limits.max_cpu_time)));
    }
  }
}

}  // namespace

void Program::FindDeadValues() {
  std::vector<int> last(initial.size(), -1);  // the step that touches the slot last
  for (size_t i = 0; i < steps.size(); ++i) {
    steps[i].dead.clear();
    for (int slot : steps[i].reads) last[slot] = static_cast<int>(i);
    for (int slot : steps[i].writes) last[slot] = static_cast<int>(i);
  }
  for (size_t slot = 0; slot < last.size(); ++slot) {
    if (last[slot] < 0 && std::find(outputs.begin(), outputs.end(), slot) == outputs.end()) {
      initial[slot] = c10::IValue();  // a weight that was folded away
    }
  }
  for (int slot : outputs) last[slot] = -1;
  for (size_t slot = 0; slot < last.size(); ++slot) {
    if (last[slot] >= 0) steps[last[slot]].dead.push_back(static_cast<int>(slot));
  }
}

absl::StatusOr<std::vector<at::Tensor>> RunProgram(const Program& program, const std::vector<at::Tensor>& inputs,
                                                   const RunLimits& limits, const Observer& observer) {
  const char* label = "inputs";
  try {
    const c10::InferenceMode inference;
    const MemoryBudget budget(limits.max_bytes);
    TORCH_CHECK(inputs.size() == program.inputs.size(), "the module takes ", program.inputs.size(), " inputs, not ",
                inputs.size());
    Frame frame = program.initial;
    for (size_t i = 0; i < inputs.size(); ++i) {
      CheckTensor(inputs[i], limits);
      frame[program.inputs[i]] = inputs[i];
      if (observer) observer(program.inputs[i], frame[program.inputs[i]]);
    }
    RunSteps(program, limits, observer, frame, &label);
    std::vector<at::Tensor> outputs;
    for (int slot : program.outputs) outputs.push_back(frame[slot].toTensor());
    return outputs;
  } catch (...) {
    return StatusOfCurrentException(label);
  }
}

}  // namespace egeria::reference

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/reference/backend.h"
#include "common/reference/binding.h"

namespace egeria::reference {
namespace {

// The graph as it came, node by node: what every other backend is measured against.
class AtenBackend final : public Backend {
 public:
  const std::string& name() const override { return name_; }
  const std::string& family() const override { return name_; }
  absl::StatusOr<Program> Pack(const PackInput& input) const override {
    Program program = MakeProgram(input);
    for (const BoundNode& node : input.graph->graph->nodes) program.steps.push_back(MakeStep(node));
    program.FindDeadValues();
    return program;
  }

 private:
  const std::string name_ = "aten";
};

}  // namespace

Program MakeProgram(const PackInput& input) {
  const BoundGraph& graph = *input.graph->graph;
  Program program;
  program.initial.resize(graph.slots());
  for (size_t i = 0; i < graph.weights.size(); ++i) program.initial[graph.weights[i]] = input.weights[i];
  program.inputs = graph.inputs;
  program.outputs = graph.outputs;
  return program;
}

std::unique_ptr<Backend> MakeAtenBackend() { return std::make_unique<AtenBackend>(); }

absl::StatusOr<std::vector<std::unique_ptr<Backend>>> MakeBackends(const std::vector<std::string>& families) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (const std::string& family : families) {
    if (family == "aten") {
      backends.push_back(MakeAtenBackend());
    } else if (family == "prepacked") {
      backends.push_back(MakePrepackedBackend());
    } else if (family == "bf16") {
      backends.push_back(MakeBfloat16Backend());
    } else if (family == "int8") {
      backends.push_back(MakeInt8Backend(/*float_residual=*/false));
      backends.push_back(MakeInt8Backend(/*float_residual=*/true));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("'", family, "' is no reference backend: take int8, bf16, prepacked or aten"));
    }
  }
  return backends;
}

}  // namespace egeria::reference

// Runs a module graph as the controller's reference engine does, for tests of whoever makes graphs: reads
// one line of JSON {"graph": "<protobuf JSON>", "inputs": [{"dtype": 1, "shape": [8, 3]}, ...]} and then the bytes of
// the graph's weights, in its order, and of the inputs; writes the bytes of the first output. The argument is a
// backend's family ("aten"). Exit code 1 and the reason on standard error where anything is refused.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/graph/graph_json.h"
#include "common/reference/backend.h"
#include "common/reference/reference_module.h"
#include "common/reference/tensor_bridge.h"
#include "common/reference/wire_checks.h"
#include "nlohmann/json.hpp"

namespace egeria::reference {
namespace {

absl::StatusOr<WireTensor> Read(const TensorSpec& spec, absl::string_view* bytes) {
  EGERIA_ASSIGN_OR_RETURN(const size_t size, ByteSize(spec));
  if (bytes->size() < size) return absl::InvalidArgumentError(absl::StrCat("no bytes left for ", spec.name));
  WireTensor tensor = MakeWireTensor(spec, bytes->data());
  bytes->remove_prefix(size);
  return tensor;
}

absl::StatusOr<std::string> Run(const std::string& family, const std::string& header, absl::string_view bytes) {
  const nlohmann::json json = nlohmann::json::parse(header);
  EGERIA_ASSIGN_OR_RETURN(const graph::ModuleGraph graph, graph::ParseGraphJson(json.at("graph").get<std::string>()));
  EGERIA_ASSIGN_OR_RETURN(const std::shared_ptr<ReferenceModule> module, ReferenceModule::Create(graph));
  std::vector<WireTensor> weights;
  for (const TensorSpec& spec : graph.weights) {
    EGERIA_ASSIGN_OR_RETURN(WireTensor weight, Read(spec, &bytes));
    weights.push_back(std::move(weight));
  }
  EGERIA_ASSIGN_OR_RETURN(weights, MatchWeights(graph.weights, std::move(weights)));
  module->SetWeights(std::move(weights));
  std::vector<at::Tensor> inputs;
  for (const nlohmann::json& input : json.at("inputs")) {
    const TensorSpec spec{"input", static_cast<DataType>(input.at("dtype").get<int>()),
                          input.at("shape").get<std::vector<int64_t>>()};
    EGERIA_ASSIGN_OR_RETURN(const WireTensor tensor, Read(spec, &bytes));
    if (!IsFinite(tensor)) return absl::InvalidArgumentError("an input is not finite");
    inputs.push_back(ToTensor(tensor));
  }
  EGERIA_ASSIGN_OR_RETURN(const auto backends, MakeBackends({family}));
  EGERIA_ASSIGN_OR_RETURN(const std::vector<at::Tensor> outputs, module->Run(*backends.front(), inputs));
  const at::Tensor output = outputs.front().contiguous();
  return std::string(static_cast<const char*>(output.const_data_ptr()), output.nbytes());
}

}  // namespace
}  // namespace egeria::reference

int main(int argc, char** argv) {
  std::string header;
  std::getline(std::cin, header);
  const std::string bytes{std::istreambuf_iterator<char>(std::cin), {}};
  const absl::StatusOr<std::string> output = egeria::reference::Run(argc > 1 ? argv[1] : "aten", header, bytes);
  if (!output.ok()) {
    std::cerr << output.status().message() << '\n';
    return 1;
  }
  std::cout << *output;
  return 0;
}

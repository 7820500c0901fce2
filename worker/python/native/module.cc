// egeria._native is what the Python package runs on. Every call that may wait releases the interpreter's lock.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/config/environment.h"
#include "common/graph/graph_json.h"
#include "torch/headeronly/version.h"
#include "worker/cache/entry/cache_folder.h"
#include "worker/commit/parameter_checksum.h"
#include "worker/freeze/partition.h"
#include "worker/planning/planned_saving.h"
#include "worker/planning/policy_options.h"
#include "worker/python/native/agreement_binding.h"
#include "worker/python/native/cache_binding.h"
#include "worker/python/native/interpreter.h"
#include "worker/python/native/link_binding.h"
#include "worker/python/native/planning_binding.h"
#include "worker/python/native/python_link.h"
#include "worker/python/native/reference_costs.h"
#include "worker/python/native/time_ledger_binding.h"
#include "worker/python/native/watch_binding.h"

namespace egeria::python {
namespace {

std::vector<std::tuple<std::string, int, int>> Partition(
    const std::vector<std::tuple<std::string, std::string, int64_t>>& blocks, std::vector<std::string> patterns) {
  std::vector<worker::BlockInfo> infos;
  for (const auto& [name, stage, count] : blocks) infos.push_back({name, stage, count});
  worker::PartitionOptions options;
  options.patterns = std::move(patterns);
  std::vector<std::tuple<std::string, int, int>> cuts;
  for (const worker::ModuleCut& cut : ValueOrRaise(worker::Partition(infos, options))) {
    cuts.emplace_back(cut.name, cut.begin, cut.end);
  }
  return cuts;
}

std::optional<std::string> CheckGraph(const std::string& json) {
  const absl::Status status = graph::ParseGraphJson(json).status();
  if (status.ok()) return std::nullopt;
  return std::string(status.message());
}

py::list ReferenceCosts(const std::string& graph_json, NamedTensors weights, const std::vector<at::Tensor>& inputs) {
  absl::StatusOr<std::vector<reference::BackendMeasurement>> found;
  {
    const Release release;
    found = MeasureReference(graph_json, ToNamedTensors(std::move(weights)), inputs);
  }
  py::list costs;
  for (const reference::BackendMeasurement& measurement : ValueOrRaise(std::move(found))) {
    costs.append(py::make_tuple(measurement.name, measurement.seconds, measurement.noise, measurement.refusal));
  }
  return costs;
}

void SetLogLevel(const std::string& text) {
  LogLevel level = LogLevel::kInfo;
  if (!ParseLogLevel(text, &level)) throw py::value_error("the level is debug, info, warning or error");
  ConfigureLogging("egeria", level);
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  ConfigureLogging("egeria", LogLevel::kInfo);
  module.doc() = "The C++ part of the Python package: the agent, the agreement of the ranks, the partition.";
  module.attr("built_for_torch") = std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
  DefineAgreement(module);
  DefineTimeLedger(module);
  DefinePlanning(module);
  DefineLink(module);
  DefineCache(module);
  DefineWatches(module);
  DefineMetrics(module);
  using namespace pybind11::literals;
  module.def("hash_tensors", &worker::HashTensors, "tensors"_a, py::call_guard<Release>(),
             "xxh3-64 over the element type, shape and bytes of each tensor, in order.");
  module.def("partition", &Partition, "blocks"_a, "patterns"_a = std::vector<std::string>(),
             "Cuts blocks (name, stage, parameter count) into layer modules (name, begin, end).");
  module.def("check_graph", &CheckGraph, "graph_json"_a,
             "Why the reference engine would refuse the graph, as far as can be told here; None if it would not.");
  module.def("reference_costs", &ReferenceCosts, "graph_json"_a, "weights"_a, "inputs"_a,
             "The measurements that a controller on this machine would make of each reference backend: (name, seconds, "
             "noise, refusal), the float32 baseline last. `weights` are (name, tensor) pairs, `inputs` tensors of at "
             "least two samples, all on the host.");
  module.def(
      "planned_saving",
      [](const std::string& policy_json, int64_t total_steps, const std::vector<double>& step_shares, double budget,
         const std::vector<double>& learning_rates, int embedding_prefix) {
        return ValueOrRaise(
            worker::PlannedSaving(policy_json, total_steps, step_shares, budget, learning_rates, embedding_prefix));
      },
      "policy_json"_a, "total_steps"_a, "step_shares"_a, "budget"_a = 0.0, "learning_rates"_a = std::vector<double>(),
      "embedding_prefix"_a = 0, "The part of a training's time that a policy saves by the clock alone.");
  module.def("policies", &worker::DescribePolicies, "Every policy and its constants, as JSON.");
  module.def("check_policy_option", &worker::Misfit, "policy"_a, "constant"_a, "value_json"_a,
             "The values that a policy's constant may have, in words; None where this one fits.");
  module.def("saved_before", &worker::SavedBefore, "step"_a, "changes"_a, "modules"_a, "step_shares"_a, "total_steps"_a,
             "The part of a training's time, 0..1, that was saved before `step` by (step, frozen prefix) changes.");
  module.def("reinvested_steps", &worker::ReinvestedSteps, "steps"_a, "saving"_a,
             "As many steps as take the time of `steps` when `saving` of it is saved.");
  module.def("random_token", &RandomToken, "128 random bits, as text.");
  module.def("random_job_id", [] { return JobId::Random().text(); }, "A new job's UUID.");
  module.def(
      "cache_folder", [] { return cache::DefaultFolder(config::ProcessEnvironment(), geteuid() == 0); },
      "The folder of this user's egeria-cache.");
  module.def("cache_address", &cache::DefaultAddress, "folder"_a, "Where the egeria-cache of this folder listens.");
  module.def(
      "unknown_variables", [] { return config::UnknownVariables(config::ProcessEnvironment()); },
      "A sentence for each variable of the environment that begins with EGERIA_ and that nothing reads.");
  module.def("set_log_level", &SetLogLevel, "level"_a, "debug, info, warning or error; for what C++ logs.");
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    const Release release;
    PythonLink::StopAll();
  }));
}

}  // namespace egeria::python

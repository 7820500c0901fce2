#ifndef EGERIA_CONTROLLER_ENGINE_ENGINE_H_
#define EGERIA_CONTROLLER_ENGINE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/graph/graph.h"
#include "common/plasticity/activation_metric.h"
#include "common/tensor/wire_tensor.h"

// This is the work of the process egeria-reference, free of protobuf. Everything belongs to its one thread.
namespace egeria::reference {

struct EngineOptions {
  int threads = 1;
  std::vector<std::string> backends;
  size_t memory_bytes = 0;           // that the values of one run may take
  absl::Duration max_time_of_a_run;  // processor time of one run of one module
};

// One module of a task. Graph and weights are given where they are new.
struct EngineModule {
  int64_t id = 0;
  std::optional<graph::ModuleGraph> graph;
  int64_t snapshot = 0;
  std::optional<std::vector<WireTensor>> weights;
};

// A sample, for the modules to run one after the other.
struct EngineTask {
  std::vector<EngineModule> modules;
  std::vector<WireTensor> sample;  // see CheckSample()
  plasticity::ActivationMetric metric = plasticity::ActivationMetric::kSpLoss;
};

struct EngineReading {
  double plasticity = 0;
  std::string backend;
  absl::Duration compute;  // processor time, of all threads if each took as much as this one
};

struct EngineAnswer {
  absl::StatusOr<EngineReading> reading;
  bool graph_refused = false;  // it does not fit the operators' schemas
};

// Keeps modules, by id, with their weights and what backends have made of them, and evaluates samples.
class Engine {
 public:
  // Evaluates a small sample, so that no library reads a file any more. Errors: INVALID_ARGUMENT a backend that does
  // not exist; those of a reading.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(EngineOptions options);
  virtual ~Engine() = default;

  virtual void Forget(int64_t module) = 0;
  // Errors of the reading: those of Bind() and ReferenceChain::Evaluate(); INTERNAL [REFERENCE_FAILED] a module is not
  // known and comes without its graph.
  virtual EngineAnswer Evaluate(EngineTask task) = 0;
};

}  // namespace egeria::reference

#endif  // EGERIA_CONTROLLER_ENGINE_ENGINE_H_

#ifndef EGERIA_CONTROLLER_REFERENCE_ENGINE_CONTENTS_H_
#define EGERIA_CONTROLLER_REFERENCE_ENGINE_CONTENTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/graph/graph.h"
#include "common/tensor/wire_tensor.h"
#include "common/thread/mutex.h"
#include "controller/reference/evaluator.h"
#include "controller/reference/shared_memory.h"
#include "egeria/engine/v1/engine.pb.h"

namespace egeria::reference {

// The weights of one module at one step, in shared memory. Immutable.
struct Snapshot {
  int64_t id = 0;
  std::vector<WireTensor> weights;  // in the graph's order
  size_t bytes = 0;
};

// The ids of graphs that nobody refers to any more, until someone takes them. Thread-safe.
class ForgottenGraphs {
 public:
  void Add(int64_t id) {
    const MutexLock lock(&mutex_);
    ids_.push_back(id);
  }
  bool empty() const {
    const MutexLock lock(&mutex_);
    return ids_.empty();
  }
  std::vector<int64_t> Take() {
    const MutexLock lock(&mutex_);
    return std::exchange(ids_, {});
  }

 private:
  mutable Mutex mutex_;
  std::vector<int64_t> ids_ ABSL_GUARDED_BY(mutex_);
};

// A module's graph, for as long as a job or a sample refers to it. Immutable.
struct ReferenceGraph {
  ReferenceGraph(int64_t graph_id, graph::ModuleGraph module, std::shared_ptr<ForgottenGraphs> forgotten)
      : id(graph_id), graph(std::move(module)), forgotten_graphs(std::move(forgotten)) {}
  ~ReferenceGraph() { forgotten_graphs->Add(id); }
  ReferenceGraph(const ReferenceGraph&) = delete;
  ReferenceGraph& operator=(const ReferenceGraph&) = delete;

  const int64_t id;
  const graph::ModuleGraph graph;
  const std::shared_ptr<ForgottenGraphs> forgotten_graphs;
};

// A queued sample refers to the graphs and snapshots of the moment in which it came, so that a newer snapshot does not
// change the meaning of an older sample.
struct SampleContext {
  std::vector<std::shared_ptr<ReferenceGraph>> graphs;
  std::vector<std::shared_ptr<Snapshot>> snapshots;
};

// Knows which graphs and weights the engine's process has, and makes requests that bring along the ones that it lacks.
// A request is supposed to be carried out, unless Clear() follows. Owned by the evaluator's thread.
class EngineContents {
 public:
  struct Request {
    engine::v1::Request message;
    std::vector<std::shared_ptr<Snapshot>> replaced;  // may go when the reply has come
  };

  explicit EngineContents(const SharedMemory* memory) : memory_(memory) {}

  // The process is a new one and has nothing.
  void Clear() { snapshots_.clear(); }

  // A request to evaluate the sample, whose tensors lie in the shared memory, or with a null context only to forget the
  // graphs with these ids.
  Request RequestFor(const SampleContext* context, const SubmittedSample& sample,
                     const std::vector<int64_t>& forgotten);

 private:
  const SharedMemory* const memory_;
  std::map<int64_t, std::shared_ptr<Snapshot>> snapshots_;  // by the graph's id
};

}  // namespace egeria::reference

#endif  // EGERIA_CONTROLLER_REFERENCE_ENGINE_CONTENTS_H_

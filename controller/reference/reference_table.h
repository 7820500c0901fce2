#ifndef EGERIA_CONTROLLER_REFERENCE_REFERENCE_TABLE_H_
#define EGERIA_CONTROLLER_REFERENCE_REFERENCE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/graph/graph.h"
#include "controller/reference/engine_contents.h"

namespace egeria::reference {

// One module of a job.
struct ReferenceModuleState {
  absl::Status status;                    // OK, or why it cannot be evaluated
  std::shared_ptr<ReferenceGraph> graph;  // null where the worker's own is missing or wrong
  std::shared_ptr<Snapshot> latest;       // null before the first one, and after it had to make room
};

struct JobReferences {
  std::vector<ReferenceModuleState> modules;
  size_t weight_bytes() const;
};

// The graphs and newest snapshots of all jobs. The methods hand back what they take out, so that the caller may destroy
// it without its lock. Thread-compatible.
class ReferenceTable {
 public:
  explicit ReferenceTable(size_t max_weight_bytes) : max_weight_bytes_(max_weight_bytes) {}

  // A job whose modules have these graphs; those that `before` has, too, keep their state. Graphs get the ids from
  // `first_id` on. Takes a while for large graphs, and needs no lock.
  static JobReferences Build(const JobReferences& before, const std::vector<std::optional<graph::ModuleGraph>>& modules,
                             int64_t first_id, const std::shared_ptr<ForgottenGraphs>& forgotten);

  // `count` ids that no graph or snapshot has; returns the first.
  int64_t NextIds(size_t count) { return std::exchange(next_id_, next_id_ + static_cast<int64_t>(count)); }

  // A job that is not there has no modules.
  JobReferences Get(const JobId& job) const;
  JobReferences Set(const JobId& job, JobReferences references);
  JobReferences Remove(const JobId& job);

  // Errors: NOT_FOUND [UNKNOWN_JOB], [UNKNOWN_MODULE]; the module's status.
  absl::StatusOr<ReferenceModuleState*> Find(const JobId& job, ModuleIndex module);

  // The graphs and snapshots of modules first..last. Errors: those of Find(), FAILED_PRECONDITION [NO_REFERENCE].
  absl::StatusOr<std::shared_ptr<SampleContext>> ContextFor(const JobId& job, ModuleIndex first, ModuleIndex last);

  // Makes room for a snapshot of `bytes` of this module. The job with the most weights gives way, so that none can take
  // the place of the others. Errors: those of Find(); RESOURCE_EXHAUSTED [QUEUE_FULL] where that is this job.
  absl::Status MakeRoom(const JobId& job, ModuleIndex module, size_t bytes,
                        std::vector<std::shared_ptr<Snapshot>>* dropped);

  // The module is not evaluated any more, for this reason. False where it is unknown or has another graph by now.
  bool Refuse(const JobId& job, ModuleIndex module, const ReferenceGraph* graph, const absl::Status& why,
              std::shared_ptr<Snapshot>* dropped);

  size_t weight_bytes() const;

 private:
  const size_t max_weight_bytes_;
  std::map<JobId, JobReferences> jobs_;
  int64_t next_id_ = 1;
};

}  // namespace egeria::reference

#endif  // EGERIA_CONTROLLER_REFERENCE_REFERENCE_TABLE_H_

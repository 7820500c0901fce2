#include "controller/reference/reference_table.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace egeria::reference {

size_t JobReferences::weight_bytes() const {
  size_t bytes = 0;
  for (const ReferenceModuleState& module : modules) bytes += module.latest == nullptr ? 0 : module.latest->bytes;
  return bytes;
}

JobReferences ReferenceTable::Build(const JobReferences& before,
                                    const std::vector<std::optional<graph::ModuleGraph>>& modules, int64_t first_id,
                                    const std::shared_ptr<ForgottenGraphs>& forgotten) {
  JobReferences built;
  for (size_t i = 0; i < modules.size(); ++i) {
    ReferenceModuleState& module = built.modules.emplace_back();
    if (!modules[i].has_value()) {
      module.status = NamedError(absl::StatusCode::kFailedPrecondition, "NO_GRAPH", "the worker sent no graph");
    } else if (i < before.modules.size() && before.modules[i].graph != nullptr &&
               before.modules[i].graph->graph == *modules[i]) {
      module = before.modules[i];
    } else if (module.status = graph::Validate(*modules[i]); module.status.ok()) {
      module.graph = std::make_shared<ReferenceGraph>(first_id + static_cast<int64_t>(i), *modules[i], forgotten);
    }
  }
  return built;
}

JobReferences ReferenceTable::Get(const JobId& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? JobReferences() : found->second;
}

JobReferences ReferenceTable::Set(const JobId& job, JobReferences references) {
  return std::exchange(jobs_[job], std::move(references));
}

JobReferences ReferenceTable::Remove(const JobId& job) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return {};
  JobReferences removed = std::move(found->second);
  jobs_.erase(found);
  return removed;
}

absl::StatusOr<ReferenceModuleState*> ReferenceTable::Find(const JobId& job, ModuleIndex module) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_JOB", job.text());
  std::vector<ReferenceModuleState>& modules = found->second.modules;
  if (module.value() < 0 || module.value() >= static_cast<int64_t>(modules.size())) {
    return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_MODULE", module.value(), " of ", modules.size());
  }
  ReferenceModuleState& state = modules[static_cast<size_t>(module.value())];
  if (!state.status.ok()) return state.status;
  return &state;
}

absl::StatusOr<std::shared_ptr<SampleContext>> ReferenceTable::ContextFor(const JobId& job, ModuleIndex first,
                                                                          ModuleIndex last) {
  EGERIA_RETURN_IF_ERROR(Find(job, last).status());
  if (first > last) {
    return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_MODULE", "the first module comes after the last");
  }
  auto context = std::make_shared<SampleContext>();
  for (ModuleIndex i = first; i <= last; i = i.next()) {
    EGERIA_ASSIGN_OR_RETURN(const ReferenceModuleState* state, Find(job, i));
    if (state->latest == nullptr) {
      return NamedError(absl::StatusCode::kFailedPrecondition, "NO_REFERENCE", "module ", i.value(),
                        " has no snapshot yet");
    }
    context->graphs.push_back(state->graph);
    context->snapshots.push_back(state->latest);
  }
  return context;
}

absl::Status ReferenceTable::MakeRoom(const JobId& job, ModuleIndex module, size_t bytes,
                                      std::vector<std::shared_ptr<Snapshot>>* dropped) {
  EGERIA_ASSIGN_OR_RETURN(const ReferenceModuleState* state, Find(job, module));
  const size_t replaced = state->latest == nullptr ? 0 : state->latest->bytes;
  const size_t own = jobs_.at(job).weight_bytes() - replaced + bytes;
  size_t total = weight_bytes() - replaced + bytes;
  while (total > max_weight_bytes_) {
    JobReferences* largest = nullptr;
    size_t most = own;
    for (auto& [id, other] : jobs_) {
      const size_t theirs = other.weight_bytes();
      if (id == job || theirs <= most) continue;
      largest = &other;
      most = theirs;
    }
    if (largest == nullptr) {
      return NamedError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "this job's snapshots would take ", own,
                        " bytes, and those of all jobs ", total, ", at most ", max_weight_bytes_,
                        " (reference.weight_bytes)");
    }
    for (ReferenceModuleState& theirs : largest->modules) dropped->push_back(std::exchange(theirs.latest, nullptr));
    total -= most;
  }
  return absl::OkStatus();
}

bool ReferenceTable::Refuse(const JobId& job, ModuleIndex module, const ReferenceGraph* graph, const absl::Status& why,
                            std::shared_ptr<Snapshot>* dropped) {
  const absl::StatusOr<ReferenceModuleState*> state = Find(job, module);
  if (!state.ok() || (*state)->graph.get() != graph) return false;
  (*state)->status = absl::FailedPreconditionError(why.message());
  *dropped = std::exchange((*state)->latest, nullptr);
  return true;
}

size_t ReferenceTable::weight_bytes() const {
  size_t bytes = 0;
  for (const auto& [id, job] : jobs_) bytes += job.weight_bytes();
  return bytes;
}

}  // namespace egeria::reference

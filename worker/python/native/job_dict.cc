#include "worker/python/native/job_dict.h"

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/graph/graph_json.h"
#include "pybind11/stl.h"

namespace egeria::python {
namespace {

namespace py = pybind11;
using worker::JobDescription;
using worker::ModuleDescription;

template <typename T>
using Readers = std::map<std::string, std::function<void(py::handle value, T* out)>>;

// Calls the reader of each key of `dict`.
template <typename T>
void ReadKeys(const py::dict& dict, const char* what, const Readers<T>& readers, T* out) {
  for (const auto& [key, value] : dict) {
    const auto reader = readers.find(py::cast<std::string>(key));
    if (reader == readers.end()) {
      throw py::key_error(std::string(what) + " has no key " + std::string(py::repr(key)));
    }
    try {
      reader->second(value, out);
    } catch (const py::cast_error&) {
      throw py::type_error(std::string(what) + "[" + std::string(py::repr(key)) + "] is " +
                           std::string(py::repr(value)));
    }
  }
}

template <typename T, typename Field>
std::function<void(py::handle, T*)> Into(Field T::* field) {
  return [field](py::handle value, T* out) { out->*field = py::cast<Field>(value); };
}

// Makes an identifier of our own type from an integer.
template <typename Field>
std::function<void(py::handle, JobDescription*)> IntoId(Field JobDescription::* field) {
  return [field](py::handle value, JobDescription* out) { out->*field = Field(py::cast<int64_t>(value)); };
}

void ReadGraph(py::handle value, ModuleDescription* module) {
  if (value.is_none()) return;
  absl::StatusOr<graph::ModuleGraph> graph = graph::ParseGraphJson(py::cast<std::string>(value));
  if (graph.ok()) {
    module->graph = *std::move(graph);
  } else {
    module->graph_error = std::string(graph.status().message());
  }
}

ModuleDescription ReadModule(const py::dict& dict) {
  static const Readers<ModuleDescription> readers = {
      {"name", Into(&ModuleDescription::name)},
      {"parameter_count", Into(&ModuleDescription::parameter_count)},
      {"parameter_bytes", Into(&ModuleDescription::parameter_bytes)},
      {"graph_json", ReadGraph},
      {"graph_error",
       [](py::handle value, ModuleDescription* module) {
         if (!value.is_none()) module->graph_error = py::cast<std::string>(value);
       }},
      {"local_reference", Into(&ModuleDescription::local_reference)},
      {"step_share", Into(&ModuleDescription::step_share)},
  };
  ModuleDescription module;
  ReadKeys(dict, "a module", readers, &module);
  if (module.graph.has_value() && module.local_reference) module.graph.reset();
  return module;
}

}  // namespace

JobDescription ReadJob(const py::dict& dict) {
  static const Readers<JobDescription> readers = {
      {"job_id", [](py::handle value, JobDescription* job) { job->job_id = JobId(py::cast<std::string>(value)); }},
      {"secret", Into(&JobDescription::secret)},
      {"generation", IntoId(&JobDescription::generation)},
      {"start_id", Into(&JobDescription::start_id)},
      {"rank", Into(&JobDescription::rank)},
      {"world_size", Into(&JobDescription::world_size)},
      {"training_job", Into(&JobDescription::training_job)},
      {"modules",
       [](py::handle value, JobDescription* job) {
         for (const py::handle module : py::cast<py::list>(value)) {
           job->modules.push_back(ReadModule(py::cast<py::dict>(module)));
         }
       }},
      {"policy_json", Into(&JobDescription::policy_json)},
      {"total_steps", [](py::handle value,
                         JobDescription* job) { job->total_steps = value.is_none() ? 0 : py::cast<int64_t>(value); }},
      {"planned_learning_rates", Into(&JobDescription::planned_learning_rates)},
      {"observe", Into(&JobDescription::observe)},
      {"budget", Into(&JobDescription::budget)},
      {"saved_before", Into(&JobDescription::saved_before)},
      {"mean_rate_before", Into(&JobDescription::mean_rate_before)},
      {"embedding_prefix", Into(&JobDescription::embedding_prefix)},
      {"losses_reported", Into(&JobDescription::losses_reported)},
      {"step", Into(&JobDescription::step)},
      {"frozen_prefix", Into(&JobDescription::frozen_prefix)},
      {"applied_plan", IntoId(&JobDescription::applied_plan)},
  };
  JobDescription job;
  ReadKeys(dict, "a job", readers, &job);
  return job;
}

}  // namespace egeria::python

#ifndef EGERIA_WORKER_PYTHON_NATIVE_JOB_DICT_H_
#define EGERIA_WORKER_PYTHON_NATIVE_JOB_DICT_H_

#include "pybind11/pybind11.h"
#include "worker/agent/agent.h"

namespace egeria::python {

// Reads a job as the package describes it: a dict with the keys job_id, generation, start_id, rank, world_size,
// training_job, modules, policy_json, total_steps, observe, step, frozen_prefix, applied_plan and losses_reported;
// modules is a list of dicts with name, parameter_count, parameter_bytes, graph_json, graph_error and
// local_reference. A key that is missing takes JobDescription's default. A graph that cannot be used is left out, with
// the reason in its place.
//
// Throws pybind11's KeyError for a key that it does not know, TypeError for a value of another type.
worker::JobDescription ReadJob(const pybind11::dict& job);

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_JOB_DICT_H_

#ifndef EGERIA_WORKER_PYTHON_NATIVE_PLANNING_BINDING_H_
#define EGERIA_WORKER_PYTHON_NATIVE_PLANNING_BINDING_H_

#include "pybind11/pybind11.h"

namespace egeria::python {

// Defines the rules that the native trainer and the Python package share about what they tell the controller:
// LearningRates, embedding_prefix(), MAX_PLANNED_RATES and TOTALS_EVERY.
void DefinePlanning(pybind11::module_& module);

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_PLANNING_BINDING_H_

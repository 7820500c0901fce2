#ifndef EGERIA_WORKER_PYTHON_NATIVE_CACHE_BINDING_H_
#define EGERIA_WORKER_PYTHON_NATIVE_CACHE_BINDING_H_

#include "pybind11/pybind11.h"

namespace egeria::python {

// Defines what egeria.cache runs on: the line to the cache, the ledger of passes, the proofs about rows.
void DefineCache(pybind11::module_& module);

// Defines compared() and distance(), by which egeria.reference takes readings.
void DefineMetrics(pybind11::module_& module);

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_CACHE_BINDING_H_

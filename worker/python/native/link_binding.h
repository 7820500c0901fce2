#ifndef EGERIA_WORKER_PYTHON_NATIVE_LINK_BINDING_H_
#define EGERIA_WORKER_PYTHON_NATIVE_LINK_BINDING_H_

#include "pybind11/pybind11.h"

namespace egeria::python {

// Defines _native.RankLink, the requests that it gives, and _native.Plan.
void DefineLink(pybind11::module_& module);

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_LINK_BINDING_H_

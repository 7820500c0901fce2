#ifndef EGERIA_WORKER_PYTHON_NATIVE_WATCH_BINDING_H_
#define EGERIA_WORKER_PYTHON_NATIVE_WATCH_BINDING_H_

#include "pybind11/pybind11.h"

namespace egeria::python {

// Defines what is looked at in every step: _native.ContentWatch, _native.TableWatch and _native.GradientFlags.
void DefineWatches(pybind11::module_& module);

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_WATCH_BINDING_H_

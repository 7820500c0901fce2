#ifndef EGERIA_WORKER_PYTHON_NATIVE_AGREEMENT_BINDING_H_
#define EGERIA_WORKER_PYTHON_NATIVE_AGREEMENT_BINDING_H_

#include "pybind11/pybind11.h"

namespace egeria::python {

// Defines how ranks compare themselves: _native.SettingsExchange and identical_on_all_ranks().
void DefineAgreement(pybind11::module_& module);

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_AGREEMENT_BINDING_H_

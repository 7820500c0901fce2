#ifndef EGERIA_WORKER_PYTHON_NATIVE_TIME_LEDGER_BINDING_H_
#define EGERIA_WORKER_PYTHON_NATIVE_TIME_LEDGER_BINDING_H_

#include "pybind11/pybind11.h"

namespace egeria::python {

// Defines _native.TimeLedger.
void DefineTimeLedger(pybind11::module_& module);

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_TIME_LEDGER_BINDING_H_

#ifndef EGERIA_WORKER_PYTHON_NATIVE_ACCOUNT_BINDING_H_
#define EGERIA_WORKER_PYTHON_NATIVE_ACCOUNT_BINDING_H_

#include "pybind11/pybind11.h"

namespace egeria::python {

// Defines _native.Account.
void DefineAccount(pybind11::module_& module);

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_ACCOUNT_BINDING_H_

#ifndef EGERIA_WORKER_PYTHON_NATIVE_RAISING_H_
#define EGERIA_WORKER_PYTHON_NATIVE_RAISING_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "torch/csrc/utils/pybind.h"

// The files of this folder that define Python's functions have these in common.
namespace egeria::python {

using Release = py::gil_scoped_release;

// Raises what a signal's handler has raised, else egeria.EgeriaError.
[[noreturn]] inline void Raise(const absl::Status& status) {
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  const std::string text(status.message());
  const size_t end = text.rfind('[', 0) == 0 ? text.find("] ") : std::string::npos;
  const std::string name = end == std::string::npos ? absl::StatusCodeToString(status.code()) : text.substr(1, end - 1);
  const std::string what = end == std::string::npos ? text : text.substr(end + 2);
  const py::object error = py::module_::import("egeria.errors").attr("EgeriaError");
  PyErr_SetObject(error.ptr(), error(name, what).ptr());
  throw py::error_already_set();
}

template <typename T>
T ValueOrRaise(absl::StatusOr<T> result) {
  if (!result.ok()) Raise(result.status());
  return *std::move(result);
}

// An object that Python may drop with the interpreter's lock in hand, though its end may take a while.
template <typename T>
std::shared_ptr<T> DroppedWithoutLock(std::shared_ptr<T> object) {
  T* const raw = object.get();
  return {raw, [object = std::move(object)](T*) mutable {
            if (PyGILState_Check() == 0) return object.reset();
            const Release release;
            object.reset();
          }};
}

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_RAISING_H_

#ifndef EGERIA_WORKER_PYTHON_NATIVE_INTERPRETER_H_
#define EGERIA_WORKER_PYTHON_NATIVE_INTERPRETER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "torch/csrc/utils/pybind.h"
#include "worker/freeze/named_tensor.h"

// The bindings need the interpreter's lock, its signals and its exceptions.
namespace egeria::python {

// Lets other threads of Python run while it lives. Every call that may wait is made under one.
using Release = py::gil_scoped_release;

// Tensors as Python gives them, with their names.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
std::vector<worker::NamedTensor> ToNamedTensors(NamedTensors tensors);

// Returns true if a signal's handler has raised. The exception stays set until Raise().
bool SignalRaised();

// Raises what a signal's handler has raised, else egeria.EgeriaError with the status's name and text.
[[noreturn]] void Raise(const absl::Status& status);

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

#endif  // EGERIA_WORKER_PYTHON_NATIVE_INTERPRETER_H_

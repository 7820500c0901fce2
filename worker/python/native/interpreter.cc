#include "worker/python/native/interpreter.h"

namespace egeria::python {

std::vector<worker::NamedTensor> ToNamedTensors(NamedTensors tensors) {
  std::vector<worker::NamedTensor> named;
  named.reserve(tensors.size());
  for (auto& [name, tensor] : tensors) named.push_back({std::move(name), std::move(tensor)});
  return named;
}

bool SignalRaised() {
  const py::gil_scoped_acquire acquire;
  return PyErr_CheckSignals() != 0;
}

void Raise(const absl::Status& status) {
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  const std::string text(status.message());
  const size_t end = text.rfind('[', 0) == 0 ? text.find("] ") : std::string::npos;
  const std::string name = end == std::string::npos ? absl::StatusCodeToString(status.code()) : text.substr(1, end - 1);
  const std::string what = end == std::string::npos ? text : text.substr(end + 2);
  const py::object error = py::module_::import("egeria.errors").attr("EgeriaError");
  PyErr_SetObject(error.ptr(), error(name, what).ptr());
  throw py::error_already_set();
}

}  // namespace egeria::python

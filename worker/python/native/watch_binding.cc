// Binds what is looked at in every step, where each microsecond counts.
#include "worker/python/native/watch_binding.h"

#include <string>
#include <utility>
#include <vector>

#include "worker/cache/client/content_watch.h"
#include "worker/python/native/interpreter.h"

namespace egeria::python {
namespace {

// Sees whether names of dictionaries stand for other objects than they did. Python collects it as other containers.
class TableWatch {
 public:
  // Takes what each name stands for now. Raises KeyError where it stands for nothing.
  void Add(const py::dict& table, const py::iterable& names) {
    for (const py::handle name : names) {
      PyObject* const value = PyDict_GetItemWithError(table.ptr(), name.ptr());
      if (value == nullptr) throw py::key_error(py::repr(name));
      entries_.push_back({table, py::reinterpret_borrow<py::object>(name), py::reinterpret_borrow<py::object>(value)});
    }
  }

  bool Unchanged() const {
    for (const Entry& entry : entries_) {
      if (PyDict_GetItemWithError(entry.table.ptr(), entry.name.ptr()) != entry.value.ptr()) {
        if (PyErr_Occurred() != nullptr) throw py::error_already_set();
        return false;
      }
    }
    return true;
  }

  int Traverse(visitproc visit, void* arg) const {
    for (const Entry& entry : entries_) {
      Py_VISIT(entry.table.ptr());
      Py_VISIT(entry.name.ptr());
      Py_VISIT(entry.value.ptr());
    }
    return 0;
  }

  void Clear() {
    const std::vector<Entry> dropped = std::exchange(entries_, {});  // their ends may come back here
  }

 private:
  struct Entry {
    py::dict table;
    py::object name;
    py::object value;
  };
  std::vector<Entry> entries_;
};

// Lets Python's garbage collector look through a TableWatch.
void CollectTableWatches(PyHeapTypeObject* heap_type) {
  PyTypeObject& type = heap_type->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    auto* const instance = reinterpret_cast<py::detail::instance*>(self);
    if (instance->get_value_and_holder().holder_constructed()) {
      return py::cast<const TableWatch&>(py::handle(self)).Traverse(visit, arg);
    }
    return 0;
  };
  type.tp_clear = [](PyObject* self) {
    py::cast<TableWatch&>(py::handle(self)).Clear();
    return 0;
  };
}

class GradientFlags {
 public:
  explicit GradientFlags(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}

  py::bytes Now() const {
    std::string flags(tensors_.size(), '\0');
    for (size_t i = 0; i < tensors_.size(); ++i) flags[i] = tensors_[i].requires_grad() ? '\1' : '\0';
    return flags;
  }

  bool Any() const {
    for (const at::Tensor& tensor : tensors_) {
      if (tensor.requires_grad()) return true;
    }
    return false;
  }

 private:
  std::vector<at::Tensor> tensors_;
};

}  // namespace

void DefineWatches(py::module_& module) {
  using namespace pybind11::literals;
  py::class_<cache::ContentWatch>(module, "ContentWatch", "Sees writes to tensors.")
      .def(py::init<const std::vector<at::Tensor>&, size_t, size_t>(), "tensors"_a, "looks"_a = 256,
           "whole_bytes"_a = 0)
      .def("unchanged", &cache::ContentWatch::Unchanged, "again"_a = false,
           "The next look at contents: at a part of each tensor that is dense in host memory, a different part each "
           "time.")
      .def("in_place", &cache::ContentWatch::InPlace,
           "Whether all are where they were, with the same shapes and strides.")
      .def("touched", &cache::ContentWatch::Touched,
           "Positions of the tensors with counted writes, or with other memory, since the last call.");
  py::class_<TableWatch>(module, "TableWatch", "Sees that names of dictionaries stand for other objects.",
                         py::custom_type_setup(CollectTableWatches))
      .def(py::init<>())
      .def("add", &TableWatch::Add, "table"_a, "names"_a, "Takes what these names stand for; KeyError: for nothing.")
      .def("unchanged", &TableWatch::Unchanged, "Whether each name stands for the same object.");
  py::class_<GradientFlags>(module, "GradientFlags", "Whether tensors require gradients.")
      .def(py::init<std::vector<at::Tensor>>(), "tensors"_a)
      .def("now", &GradientFlags::Now, "A byte for each tensor: 1 where it does, else 0.")
      .def("any", &GradientFlags::Any, "Whether one does.");
}

}  // namespace egeria::python

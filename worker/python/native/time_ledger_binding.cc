#include "worker/python/native/time_ledger_binding.h"

#include "pybind11/functional.h"
#include "pybind11/stl.h"
#include "worker/accounting/time_ledger.h"

namespace egeria::python {

void DefineTimeLedger(pybind11::module_& module) {
  namespace py = pybind11;
  using namespace py::literals;
  using worker::TimeLedger;
  namespace spent_on = worker::spent_on;
  py::class_<TimeLedger>(module, "TimeLedger",
                         "Seconds saved by freezing, and spent by Egeria: see worker/accounting/time_ledger.h.")
      .def(py::init<>())
      .def(py::init<TimeLedger::Clock>(), "now"_a, "With a clock of its own, in seconds.")
      .def("begin", &TimeLedger::Begin)
      .def("end", &TimeLedger::End, "what"_a)
      .def("add_spent", &TimeLedger::Add, "what"_a, "seconds"_a)
      .def("disturb", &TimeLedger::Disturb)
      .def("set_compilation", &TimeLedger::SetCompilation, "seconds"_a)
      .def("switch_seconds", &TimeLedger::SwitchSeconds)
      .def("begin_forward", &TimeLedger::BeginForward)
      .def("end_step", &TimeLedger::EndStep, "prefix"_a, "share"_a)
      .def_property_readonly("frozen_share", &TimeLedger::frozen_share)
      .def("saved_seconds", &TimeLedger::SavedSeconds)
      .def("spent_seconds", &TimeLedger::SpentSeconds)
      .def("net_share", &TimeLedger::NetShare)
      .def(
          "measuring_seconds", [](const TimeLedger& account) { return account.totals().measuring_seconds(); },
          "The part of the spent ones that went into measurements for a policy.")
      .def("seconds_per_step", [](const TimeLedger& account) { return account.SecondsPerStep(); })
      .attr("CATEGORIES") = std::vector<std::string>(std::begin(spent_on::kAll), std::end(spent_on::kAll));
}

}  // namespace egeria::python

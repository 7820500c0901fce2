#include "worker/python/native/account_binding.h"

#include "pybind11/functional.h"
#include "pybind11/stl.h"
#include "worker/session/account.h"

namespace egeria::python {

void DefineAccount(pybind11::module_& module) {
  namespace py = pybind11;
  using namespace py::literals;
  using worker::Account;
  namespace spent_on = worker::spent_on;
  py::class_<Account>(module, "Account",
                      "Seconds saved by freezing, and spent by Egeria: see worker/session/account.h.")
      .def(py::init<>())
      .def(py::init<Account::Clock>(), "now"_a, "With a clock of its own, in seconds.")
      .def("begin", &Account::Begin)
      .def("end", &Account::End, "what"_a)
      .def("add_spent", &Account::Add, "what"_a, "seconds"_a)
      .def("disturb", &Account::Disturb)
      .def("begin_forward", &Account::BeginForward)
      .def("end_step", &Account::EndStep, "prefix"_a, "share"_a)
      .def_property_readonly("frozen_share", &Account::frozen_share)
      .def("saved_seconds", &Account::SavedSeconds)
      .def("spent_seconds", &Account::SpentSeconds)
      .def("net_share", &Account::NetShare)
      .def(
          "measuring_seconds", [](const Account& account) { return account.totals().measuring_seconds(); },
          "Of the spent ones, for what a policy decides by.")
      .def("seconds_per_step", [](const Account& account) { return account.SecondsPerStep(); })
      .attr("CATEGORIES") = std::vector<std::string>(std::begin(spent_on::kAll), std::end(spent_on::kAll));
}

}  // namespace egeria::python

#include "worker/python/native/planning_binding.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "pybind11/functional.h"
#include "pybind11/stl.h"
#include "worker/accounting/time_ledger.h"
#include "worker/freeze/embedding_prefix.h"
#include "worker/planning/learning_rates.h"
#include "worker/planning/planned_saving.h"

namespace egeria::python {

void DefinePlanning(pybind11::module_& module) {
  namespace py = pybind11;
  using namespace py::literals;
  using worker::LearningRates;
  py::class_<LearningRates>(module, "LearningRates",
                            "A training's mean rate, and the layer modules whose rates are 0: see "
                            "worker/planning/learning_rates.h.")
      .def(py::init<std::optional<double>>(), "sum"_a = 0.0)
      .def(
          "end_step", [](LearningRates& self, const std::vector<double>& rates) { self.EndStep(rates); }, "rates"_a)
      .def_property_readonly("sum", &LearningRates::sum)
      .def("mean_over", &LearningRates::MeanOver, "steps"_a)
      .def(
          "zero_lr_prefix",
          [](LearningRates& self, const std::vector<double>& rates,
             const std::function<LearningRates::ModuleGroups()>& groups) { return self.ZeroLrPrefix(rates, groups); },
          "rates"_a, "groups"_a)
      .def("forget_modules", &LearningRates::ForgetModules);
  module.def(
      "embedding_prefix",
      [](const std::vector<std::pair<int64_t, int64_t>>& modules) {
        std::vector<worker::ParameterCounts> counts;
        for (const auto& [all, in_embeddings] : modules) counts.push_back({all, in_embeddings});
        return worker::EmbeddingPrefix(counts);
      },
      "modules"_a,
      "How many of the first layer modules are lookup tables, by the numbers of scalars in the parameters of each: "
      "(all, "
      "in embeddings).");
  module.attr("MAX_PLANNED_RATES") = worker::kMaxPlannedRates;
  module.attr("TOTALS_EVERY") = worker::kTotalsEvery;
}

}  // namespace egeria::python

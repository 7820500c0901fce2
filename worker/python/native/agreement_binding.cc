#include "worker/python/native/agreement_binding.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "worker/commit/parameter_checksum.h"
#include "worker/commit/settings_exchange.h"
#include "worker/python/native/interpreter.h"
#include "worker/python/native/python_link.h"

namespace egeria::python {
namespace {

using worker::RankSettings;
using worker::SettingDifference;
using worker::SettingsExchange;

bool IdenticalOnAllRanks(uint64_t hash, const std::optional<std::string>& group_name) {
  absl::StatusOr<bool> identical = true;
  {
    const Release release;
    const absl::StatusOr<worker::ProcessGroupPtr> group = FindGroup(group_name.value_or(""));
    identical = group.ok() ? worker::IdenticalOnAllRanks(hash, *group, {SignalRaised}) : group.status();
  }
  return ValueOrRaise(std::move(identical));
}

std::unique_ptr<SettingsExchange> MakeExchange(const std::string& group_name, const std::string& name) {
  const worker::ProcessGroupPtr group = ValueOrRaise(FindGroup(group_name));
  return std::make_unique<SettingsExchange>(worker::GroupMember{group->getStore(), group->getRank(), group->getSize()},
                                            name);
}

void Post(SettingsExchange& exchange, std::map<std::string, std::string> values) {
  absl::Status status;
  {
    const Release release;
    status = exchange.Post({worker::NodeName(), std::move(values)});
  }
  if (!status.ok()) Raise(status);
}

// Returns the first rank's settings, where others have something else, and this rank's controller address.
std::tuple<std::map<std::string, std::string>, std::vector<SettingDifference>, std::string> Finish(
    SettingsExchange& exchange, const std::vector<int>& ranks, double seconds) {
  absl::StatusOr<std::vector<RankSettings>> settings;
  {
    const Release release;
    const auto patience = std::chrono::duration<double>(seconds);
    settings = exchange.Finish(ranks, {SignalRaised, std::chrono::duration_cast<std::chrono::milliseconds>(patience)});
  }
  const std::vector<RankSettings> found = ValueOrRaise(std::move(settings));
  const size_t own = std::find(ranks.begin(), ranks.end(), exchange.rank()) - ranks.begin();
  return {found.front().values, worker::DifferencesFromFirst(found, ranks), worker::AgreedAddress(found, own)};
}

}  // namespace

void DefineAgreement(py::module_& module) {
  using namespace pybind11::literals;
  module.def("identical_on_all_ranks", &IdenticalOnAllRanks, "hash"_a, "group_name"_a = py::none(),
             "Whether every member of the group (over gloo) came with the same hash. A collective.");
  module.attr("CONTROLLER_ADDRESS") = worker::kControllerAddress;
  module.def("node_name", &worker::NodeName, "This process's node: EGERIA_NODE, or else the host's name.");
  py::class_<SettingDifference>(module, "SettingDifference", "One setting in which a rank is not as the first one.")
      .def_readonly("setting", &SettingDifference::setting)
      .def_readonly("rank", &SettingDifference::rank)
      .def("__str__", [](const SettingDifference& difference) { return worker::ToString(difference); });
  py::class_<SettingsExchange>(module, "SettingsExchange",
                               "Tells the settings of every rank to all, before any of them calls a collective.")
      .def(py::init(&MakeExchange), "group_name"_a, "name"_a)
      .def("post", &Post, "values"_a, "Tells this rank's settings, texts by name; it waits for nobody.")
      .def("finish", &Finish, "ranks"_a, "seconds"_a,
           "The first rank's settings, every SettingDifference from it, and the controller's address for this rank, "
           "once all of `ranks` have posted. Raises [RANK_MISSING] on all of them where one has not within `seconds`.");
}

}  // namespace egeria::python

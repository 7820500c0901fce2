#include "worker/python/native/link_binding.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "worker/cache/client/activation_cache.h"
#include "worker/cache/client/pass_ledger.h"
#include "worker/python/native/interpreter.h"
#include "worker/python/native/job_dict.h"
#include "worker/python/native/python_link.h"

namespace egeria::python {
namespace {

using cache::ActivationCache;
using worker::RankLink;

// stop() waits so long for what other ranks may take for their last step.
constexpr std::chrono::seconds kStopPatience{5};

// A request as Python has it. All ranks get it at the same steps; `asked`: the controller waits for this rank's answer.
template <typename Request>
struct Asked {
  Request request;
  bool asked = false;
};

// A method of RankLink that gives a request for a step.
template <typename Method>
auto RequestOf(Method method) {
  return [method](PythonLink& link, int64_t step) {
    return link.Use([&](RankLink& rank) {
      const auto request = std::invoke(method, rank, step);
      using Request = Asked<typename std::remove_cvref_t<decltype(request)>::value_type>;
      return request.has_value() ? std::optional(Request{*request, rank.IsAsked(*request)}) : std::nullopt;
    });
  };
}

// Any other method of RankLink whose arguments Python has as they are.
template <typename Result, typename... Args>
auto Locked(Result (RankLink::*method)(Args...)) {
  return [method](PythonLink& link, Args... args) {
    return link.Use([&](RankLink& rank) { return (rank.*method)(std::forward<Args>(args)...); });
  };
}

bool Offer(PythonLink& link, worker::Upload upload, std::vector<worker::NamedTensor> tensors = {}) {
  return link.Use([&](RankLink& rank) { return rank.Offer(std::move(upload), std::move(tensors)); });
}

bool OfferSample(PythonLink& link, const Asked<worker::SamplingRequest>& request, int64_t step, NamedTensors inputs,
                 const at::Tensor& compared) {
  std::vector<worker::NamedTensor> tensors = ToNamedTensors(std::move(inputs));
  tensors.push_back({"compared", compared});
  return Offer(link, worker::SampleOf(request.request, step), std::move(tensors));
}

bool OfferReading(PythonLink& link, const Asked<worker::SamplingRequest>& request, int64_t step, double plasticity) {
  return Offer(link, worker::Reading{request.request.module, step, request.request.version, plasticity});
}

bool OfferSnapshot(PythonLink& link, const Asked<worker::SnapshotRequest>& request, int64_t layer_module, int64_t step,
                   NamedTensors tensors) {
  return Offer(link, worker::Snapshot{ModuleIndex(layer_module), step, request.request.version},
               ToNamedTensors(std::move(tensors)));
}

bool OfferGradients(PythonLink& link, const Asked<worker::GradientRequest>& request, int64_t step,
                    std::vector<double> mean_of_squares, std::vector<double> square_of_mean, int parts, int64_t samples,
                    std::vector<double> progress) {
  return Offer(link, worker::GradientReading{.first_module = request.request.first_module,
                                             .step = step,
                                             .request_version = request.request.version,
                                             .parts = parts,
                                             .mean_of_squares = std::move(mean_of_squares),
                                             .square_of_mean = std::move(square_of_mean),
                                             .samples = samples,
                                             .progress = std::move(progress)});
}

std::shared_ptr<PythonLink> StartLink(const py::dict& job, const std::optional<std::string>& controller,
                                      const std::optional<std::string>& commit_group, const std::string& device,
                                      std::vector<std::pair<int64_t, int>> plans,
                                      const std::optional<std::string>& metrics, bool starts_with_job) {
  LinkOptions options;
  options.job = ReadJob(job);
  options.controller = controller.value_or("none") == "none" ? "" : *controller;
  options.commit_group = commit_group.value_or("");
  options.device = device;
  options.plans = std::move(plans);
  options.metrics = metrics.value_or("");
  options.starts_with_job = starts_with_job;
  options.interrupted = SignalRaised;
  absl::StatusOr<std::shared_ptr<PythonLink>> link;
  {
    const Release release;
    link = PythonLink::Start(std::move(options));
  }
  return DroppedWithoutLock(ValueOrRaise(std::move(link)));
}

py::dict LinkCountersOf(PythonLink& link) {
  worker::SessionTotals totals;
  worker::AgentCounters agent;
  PlanId applied_plan;
  {
    const Release release;
    link.Use([&](const RankLink& rank) {
      totals = rank.totals();
      agent = rank.counters();
      applied_plan = rank.applied_plan();
    });
  }
  py::dict out;
  out["steps"] = totals.steps;
  out["frozen_prefix"] = totals.frozen_prefix;
  out["frozen_share"] = totals.frozen_share;
  out["freezes"] = totals.freezes;
  out["unfreezes"] = totals.unfreezes;
  out["switches_undone"] = totals.switches_undone;
  out["commits"] = totals.commits;
  out["plans_disputed"] = totals.plans_disputed;
  out["applied_plan"] = applied_plan.value();
  out["checksum_mismatches"] = totals.checksum_mismatches;
  out["bytes_reduced"] = totals.bytes_reduced;
  out["samples_sent"] = totals.samples_sent;
  out["samples_dropped"] = totals.samples_dropped;
  out["snapshots_sent"] = totals.snapshots_sent;
  out["snapshot_bytes"] = totals.snapshot_bytes;
  out["uploads_refused"] = agent.uploads_refused;
  out["plans_refused"] = agent.plans_refused;
  out["reconnects"] = totals.reconnects;
  out["connected"] = totals.connected;
  out["blocked"] = agent.blocked;
  out["advice"] = agent.advice;
  out["metrics_port"] = link.metrics_port();
  return out;
}

std::optional<worker::Plan> Commit(PythonLink& link, int64_t step) {
  absl::StatusOr<std::optional<worker::Plan>> plan;
  {
    const Release release;
    plan = link.Use([&](RankLink& rank) {
      rank.Poll();
      return rank.Commit(step);
    });
  }
  return ValueOrRaise(std::move(plan));
}

void Report(PythonLink& link, int64_t step, const std::optional<at::Tensor>& loss,
            const std::vector<double>& learning_rates, int frozen_prefix, int zero_lr_prefix) {
  link.Use([&](RankLink& rank) {
    rank.Report(step, loss.value_or(at::Tensor()), learning_rates, frozen_prefix, zero_lr_prefix);
  });
}

void SetAccount(PythonLink& link, worker::TimeLedger& account) {
  double reference_seconds = 0;
  {
    const Release release;
    reference_seconds = link.Use([](const RankLink& rank) { return rank.counters().reference_seconds; });
  }
  account.SetElsewhere(worker::spent_on::kReference, reference_seconds);
  worker::TimeTotals totals = account.totals();
  const Release release;
  link.Use([&](RankLink& rank) { rank.SetAccount(std::move(totals)); });
}

void SetCacheTotals(PythonLink& link, const cache::PassLedger& ledger, const std::string& state,
                    const std::string& reason, cache::ActivationCache* cache) {
  worker::CacheTotals totals = worker::TotalsOf(ledger, cache);
  totals.state = state;
  totals.reason = reason;
  const Release release;
  link.Use([&](RankLink& rank) { rank.SetCacheTotals(std::move(totals)); });
}

void Stop(PythonLink& link, bool finished) {
  absl::Status status;
  {
    const Release release;
    status = link.Use([&](RankLink& rank) { return rank.Stop(finished, kStopPatience); });
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  // The link has ended all the same: ranks that are gone are no news at the end.
  if (!status.ok()) LogWarning(absl::string_view(status.message()));
}

void DefineRequests(py::module_& module) {
  using Sampling = Asked<worker::SamplingRequest>;
  py::class_<Sampling>(module, "SamplingRequest",
                       "Probe layer modules first_module..module on the first batch_size samples. All ranks get it "
                       "at the same steps; `asked` says whether the controller waits for this rank's result.")
      .def_property_readonly("module", [](const Sampling& self) { return self.request.module.value(); })
      .def_property_readonly("first_module", [](const Sampling& self) { return self.request.first_module.value(); })
      .def_property_readonly("interval_steps", [](const Sampling& self) { return self.request.interval_steps; })
      .def_property_readonly("batch_size", [](const Sampling& self) { return self.request.batch_size; })
      .def_property_readonly("version", [](const Sampling& self) { return self.request.version; })
      .def_property_readonly(
          "metric",
          [](const Sampling& self) { return self.request.metric == worker::ActivationMetric::kSpLoss ? "sp" : "norm"; })
      .def_readonly("asked", &Sampling::asked);
  using Snapshot = Asked<worker::SnapshotRequest>;
  py::class_<Snapshot>(
      module, "SnapshotRequest",
      "Take the weights of layer modules first_module..module at this step. All ranks get it at the same "
      "step; `asked` says whether the controller waits for this rank's.")
      .def_property_readonly("module", [](const Snapshot& self) { return self.request.module.value(); })
      .def_property_readonly("first_module", [](const Snapshot& self) { return self.request.first_module.value(); })
      .def_property_readonly("version", [](const Snapshot& self) { return self.request.version; })
      .def_readonly("asked", &Snapshot::asked);
  using Gradients = Asked<worker::GradientRequest>;
  py::class_<Gradients>(module, "GradientRequest",
                        "Tell of the gradients of layer modules first_module and behind. All ranks get it at the same "
                        "steps; `asked` says whether the controller waits for this rank's answer.")
      .def_property_readonly("first_module", [](const Gradients& self) { return self.request.first_module.value(); })
      .def_property_readonly("interval_steps", [](const Gradients& self) { return self.request.interval_steps; })
      .def_property_readonly("version", [](const Gradients& self) { return self.request.version; })
      .def_readonly("asked", &Gradients::asked);
  py::class_<worker::Plan>(module, "Plan", "From now on modules 0..frozen_prefix-1 are frozen.")
      .def_readonly("frozen_prefix", &worker::Plan::frozen_prefix)
      .def_property_readonly("plan_id", [](const worker::Plan& self) { return self.id.value(); })
      .def_readonly("reason", &worker::Plan::reason);
}

}  // namespace

void DefineLink(py::module_& module) {
  DefineRequests(module);
  using namespace pybind11::literals;
  using Unlocked = py::call_guard<Release>;
  py::class_<PythonLink, std::shared_ptr<PythonLink>>(
      module, "RankLink",
      "One rank's tie to the controller and to the other ranks. Used from the training thread. In a forked child "
      "every method does nothing.")
      .def(py::init(&StartLink), "job"_a, "controller"_a = py::none(), "commit_group"_a = py::none(),
           "device"_a = "cpu", "plans"_a = std::vector<std::pair<int64_t, int>>(), "metrics"_a = py::none(),
           "starts_with_job"_a = false)
      .def("sampling_for", RequestOf(&RankLink::SamplingFor), "step"_a, Unlocked())
      .def("snapshot_wanted", RequestOf(&RankLink::SnapshotWanted), "step"_a, Unlocked())
      .def("gradients_for", RequestOf(&RankLink::GradientsFor), "step"_a, Unlocked())
      .def("offer_sample", &OfferSample, "request"_a, "step"_a, "inputs"_a, "compared"_a, Unlocked())
      .def("offer_reading", &OfferReading, "request"_a, "step"_a, "plasticity"_a, Unlocked())
      .def("offer_gradients", &OfferGradients, "request"_a, "step"_a, "mean_of_squares"_a, "square_of_mean"_a,
           "parts"_a, "samples"_a, "progress"_a = std::vector<double>(),
           "This rank's knowledge of a step: see GradientReading in controller.proto, with parts of its own samples.",
           Unlocked())
      .def("offer_snapshot", &OfferSnapshot, "request"_a, "module"_a, "step"_a, "tensors"_a, Unlocked())
      .def("commit", &Commit, "step"_a)
      .def("report", &Report, "step"_a, "loss"_a, "learning_rates"_a, "frozen_prefix"_a, "zero_lr_prefix"_a = 0,
           Unlocked())
      .def("record_switch", Locked(&RankLink::RecordSwitch), "unfreeze"_a, "identical"_a, Unlocked())
      .def("record_undone_switch", Locked(&RankLink::RecordUndoneSwitch), Unlocked())
      .def("record_dropped_sample", Locked(&RankLink::RecordDroppedSample), Unlocked())
      .def("set_frozen_by_script", Locked(&RankLink::SetFrozenByScript), "modules"_a, Unlocked())
      .def("set_totals", Locked(&RankLink::SetModelTotals), "frozen_share"_a = 0.0, "bytes_reduced"_a = 0, Unlocked())
      .def("set_account", &SetAccount, "account"_a, "The metrics show it, and the controller is told of it.")
      .def("set_cache_totals", &SetCacheTotals, "ledger"_a, "state"_a, "reason"_a, "cache"_a,
           "The metrics show it: a PassLedger's books, the state and its reason, and what an ActivationCache, where "
           "there is one, has read.")
      .def("counters", &LinkCountersOf)
      .def("stop", &Stop, "finished"_a);
}

}  // namespace egeria::python

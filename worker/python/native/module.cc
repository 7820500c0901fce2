// egeria._native: what the Python package runs on. Every call that may wait releases the interpreter's lock.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/graph/graph_json.h"
#include "common/policy/constants.h"
#include "torch/csrc/utils/pybind.h"
#include "torch/headeronly/version.h"
#include "worker/cache/client/activation_cache.h"
#include "worker/cache/client/content_watch.h"
#include "worker/cache/client/cost_model.h"
#include "worker/cache/client/tensor_hash.h"
#include "worker/commit/parameter_checksum.h"
#include "worker/freeze/partition.h"
#include "worker/planning/planned_saving.h"
#include "worker/python/native/account_binding.h"
#include "worker/python/native/job_dict.h"
#include "worker/python/native/python_link.h"
#include "worker/python/native/reference_costs.h"

namespace egeria::python {
namespace {

using cache::ActivationCache;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
using Release = py::gil_scoped_release;

// For stop(): what other ranks may take for their last step.
constexpr std::chrono::seconds kStopPatience{5};

// Whether a signal's handler has raised. The exception stays set until Raise().
bool SignalRaised() {
  const py::gil_scoped_acquire acquire;
  return PyErr_CheckSignals() != 0;
}

// Raises what a signal's handler has raised, else egeria.EgeriaError.
[[noreturn]] void Raise(const absl::Status& status) {
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

std::vector<worker::NamedTensor> ToNamedTensors(NamedTensors tensors) {
  std::vector<worker::NamedTensor> named;
  named.reserve(tensors.size());
  for (auto& [name, tensor] : tensors) named.push_back({std::move(name), std::move(tensor)});
  return named;
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

std::shared_ptr<PythonLink> StartLink(const py::dict& job, const std::optional<std::string>& controller,
                                      const std::optional<std::string>& commit_group, const std::string& device,
                                      std::vector<std::pair<int64_t, int>> plans,
                                      const std::optional<std::string>& metrics) {
  LinkOptions options;
  options.job = ReadJob(job);
  options.controller = controller.value_or("none") == "none" ? "" : *controller;
  options.commit_group = commit_group.value_or("");
  options.device = device;
  options.plans = std::move(plans);
  options.metrics = metrics.value_or("");
  options.interrupted = SignalRaised;
  absl::StatusOr<std::shared_ptr<PythonLink>> link;
  {
    const Release release;
    link = PythonLink::Start(std::move(options));
  }
  return DroppedWithoutLock(ValueOrRaise(std::move(link)));
}

py::dict CountersOf(PythonLink& link) {
  PythonLink::Counters counters;
  {
    const Release release;
    counters = link.counters();
  }
  const worker::SessionTotals& totals = counters.totals;
  py::dict out;
  out["steps"] = totals.steps;
  out["frozen_prefix"] = totals.frozen_prefix;
  out["frozen_share"] = totals.frozen_share;
  out["freezes"] = totals.freezes;
  out["unfreezes"] = totals.unfreezes;
  out["commits"] = totals.commits;
  out["applied_plan"] = counters.applied_plan;
  out["checksum_mismatches"] = totals.checksum_mismatches;
  out["bytes_reduced"] = totals.bytes_reduced;
  out["samples_sent"] = totals.samples_sent;
  out["samples_dropped"] = totals.samples_dropped;
  out["snapshots_sent"] = totals.snapshots_sent;
  out["snapshot_bytes"] = totals.snapshot_bytes;
  out["uploads_refused"] = counters.agent.uploads_refused;
  out["plans_refused"] = counters.agent.plans_refused;
  out["reconnects"] = totals.reconnects;
  out["connected"] = totals.connected;
  out["metrics_port"] = counters.metrics_port;
  return out;
}

std::optional<worker::Plan> Commit(PythonLink& link, int64_t step) {
  absl::StatusOr<std::optional<worker::Plan>> plan;
  {
    const Release release;
    plan = link.Commit(step);
  }
  return ValueOrRaise(std::move(plan));
}

void Stop(PythonLink& link, bool finished) {
  absl::Status status;
  {
    const Release release;
    status = link.Stop(finished, kStopPatience);
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  // The link has ended all the same: ranks that are gone are no news at the end.
  if (!status.ok()) LogWarning(absl::string_view(status.message()));
}

bool IdenticalOnAllRanks(uint64_t hash, const std::optional<std::string>& group_name) {
  absl::StatusOr<bool> identical = true;
  {
    const Release release;
    const absl::StatusOr<worker::ProcessGroupPtr> group = FindGroup(group_name.value_or(""));
    identical = group.ok() ? worker::IdenticalOnAllRanks(hash, *group, {SignalRaised}) : group.status();
  }
  return ValueOrRaise(std::move(identical));
}

std::vector<std::tuple<std::string, int, int>> Partition(
    const std::vector<std::tuple<std::string, std::string, int64_t>>& blocks, std::vector<std::string> patterns) {
  std::vector<worker::BlockInfo> infos;
  for (const auto& [name, stage, count] : blocks) infos.push_back({name, stage, count});
  worker::PartitionOptions options;
  options.patterns = std::move(patterns);
  std::vector<std::tuple<std::string, int, int>> cuts;
  for (const worker::ModuleCut& cut : ValueOrRaise(worker::Partition(infos, options))) {
    cuts.emplace_back(cut.name, cut.begin, cut.end);
  }
  return cuts;
}

std::optional<std::string> CheckPolicyOption(const std::string& policy, const std::string& name,
                                             const std::string& value_json) {
  const policy::PolicyKind* kind = policy::FindKind(policy);
  const policy::Constant* constant = kind == nullptr ? nullptr : policy::FindConstant(*kind, name);
  return constant == nullptr ? "a constant that the policy has" : policy::Misfit(*constant, value_json);
}

std::optional<std::string> CheckGraph(const std::string& json) {
  const absl::Status status = graph::ParseGraphJson(json).status();
  if (status.ok()) return std::nullopt;
  return std::string(status.message());
}

py::list ReferenceCosts(const std::string& graph_json, NamedTensors weights, const std::vector<at::Tensor>& inputs) {
  absl::StatusOr<std::vector<reference::BackendMeasurement>> found;
  {
    const Release release;
    found = MeasureReference(graph_json, ToNamedTensors(std::move(weights)), inputs);
  }
  py::list costs;
  for (const reference::BackendMeasurement& measurement : ValueOrRaise(std::move(found))) {
    costs.append(py::make_tuple(measurement.name, measurement.seconds, measurement.noise, measurement.refusal));
  }
  return costs;
}

void SetLogLevel(const std::string& text) {
  LogLevel level = LogLevel::kInfo;
  if (!ParseLogLevel(text, &level)) throw py::value_error("the level is debug, info, warning or error");
  ConfigureLogging("egeria", level);
}

void DefineRequests(py::module_& module) {
  using Sampling = PythonLink::Asked<worker::SamplingRequest>;
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
  using Snapshot = PythonLink::Asked<worker::SnapshotRequest>;
  py::class_<Snapshot>(module, "SnapshotRequest",
                       "Take the weights of layer modules first_module..module, now. All ranks get it at the same "
                       "step; `asked` says whether the controller waits for this rank's.")
      .def_property_readonly("module", [](const Snapshot& self) { return self.request.module.value(); })
      .def_property_readonly("first_module", [](const Snapshot& self) { return self.request.first_module.value(); })
      .def_property_readonly("version", [](const Snapshot& self) { return self.request.version; })
      .def_readonly("asked", &Snapshot::asked);
  using Gradients = PythonLink::Asked<worker::GradientRequest>;
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

void SetCacheTotals(PythonLink& link, const std::map<std::string, int64_t>& counters,
                    std::map<std::string, int64_t> misses, const py::dict& estimates, ActivationCache* cache) {
  const auto count = [&](const char* name) {
    const auto found = counters.find(name);
    return found == counters.end() ? 0 : found->second;
  };
  worker::CacheTotals totals;
  totals.hits = count("hits");
  totals.misses = std::move(misses);
  totals.passes = count("passes");
  totals.passes_skipped = count("passes_skipped");
  totals.proofs = count("proofs");
  totals.audits = count("audits");
  if (cache != nullptr) AddReading(*cache, &totals);
  totals.saved_seconds = estimates["saved_seconds"].cast<double>();
  totals.forward_seconds = estimates["forward_seconds"].cast<std::optional<double>>().value_or(0);
  totals.fetch_seconds = estimates["fetch_seconds"].cast<std::optional<double>>().value_or(0);
  totals.state = estimates["state"].cast<std::string>();
  totals.reason = estimates["reason"].cast<std::string>();
  const Release release;
  link.SetCacheTotals(std::move(totals));
}

void DefineLink(py::module_& module) {
  using Sampling = PythonLink::Asked<worker::SamplingRequest>;
  using Snapshot = PythonLink::Asked<worker::SnapshotRequest>;
  using Gradients = PythonLink::Asked<worker::GradientRequest>;
  using namespace pybind11::literals;
  using Unlocked = py::call_guard<Release>;
  py::class_<PythonLink, std::shared_ptr<PythonLink>>(
      module, "RankLink",
      "One rank's tie to the controller and to the other ranks. Used from the training thread. In a forked child "
      "every method does nothing.")
      .def(py::init(&StartLink), "job"_a, "controller"_a = py::none(), "commit_group"_a = py::none(),
           "device"_a = "cpu", "plans"_a = std::vector<std::pair<int64_t, int>>(), "metrics"_a = py::none())
      .def("sampling_for", &PythonLink::SamplingFor, "step"_a, Unlocked())
      .def("snapshot_wanted", &PythonLink::SnapshotWanted, "step"_a, Unlocked())
      .def(
          "offer_sample",
          [](PythonLink& link, const Sampling& request, int64_t step, NamedTensors inputs, const at::Tensor& compared) {
            return link.OfferSample(request.request, step, ToNamedTensors(std::move(inputs)), compared);
          },
          "request"_a, "step"_a, "inputs"_a, "compared"_a, Unlocked())
      .def(
          "offer_reading",
          [](PythonLink& link, const Sampling& request, int64_t step, double plasticity) {
            return link.OfferReading(request.request, step, plasticity);
          },
          "request"_a, "step"_a, "plasticity"_a, Unlocked())
      .def("gradients_for", &PythonLink::GradientsFor, "step"_a, Unlocked())
      .def(
          "offer_gradients",
          [](PythonLink& link, const Gradients& request, int64_t step, std::vector<double> mean_of_squares,
             std::vector<double> square_of_mean, int parts, int64_t samples, std::vector<double> progress) {
            return link.OfferGradients(
                request.request, step,
                {std::move(mean_of_squares), std::move(square_of_mean), parts, samples, std::move(progress)});
          },
          "request"_a, "step"_a, "mean_of_squares"_a, "square_of_mean"_a, "parts"_a, "samples"_a,
          "progress"_a = std::vector<double>(),
          "What this rank knows of a step: see GradientReading in controller.proto, with parts of its own samples.",
          Unlocked())
      .def(
          "offer_snapshot",
          [](PythonLink& link, const Snapshot& request, int64_t layer_module, int64_t step, NamedTensors tensors) {
            return link.OfferSnapshot(request.request, layer_module, step, ToNamedTensors(std::move(tensors)));
          },
          "request"_a, "module"_a, "step"_a, "tensors"_a, Unlocked())
      .def("commit", &Commit, "step"_a)
      .def(
          "report",
          [](PythonLink& link, int64_t step, const std::optional<at::Tensor>& loss,
             const std::vector<double>& learning_rates, int frozen_prefix, int zero_lr_prefix) {
            link.Report(step, loss.value_or(at::Tensor()), learning_rates, frozen_prefix, zero_lr_prefix);
          },
          "step"_a, "loss"_a, "learning_rates"_a, "frozen_prefix"_a, "zero_lr_prefix"_a = 0, Unlocked())
      .def("record_switch", &PythonLink::RecordSwitch, "unfreeze"_a, "identical"_a, Unlocked())
      .def("record_dropped_sample", &PythonLink::RecordDroppedSample, Unlocked())
      .def("set_totals", &PythonLink::SetModelTotals, "frozen_share"_a = 0.0, "bytes_reduced"_a = 0, Unlocked())
      .def(
          "set_account",
          [](PythonLink& link, worker::Account& account) {
            double reference_seconds = 0;
            {
              const Release release;
              reference_seconds = link.counters().agent.reference_seconds;
            }
            account.SetElsewhere(worker::spent_on::kReference, reference_seconds);
            worker::AccountTotals totals = account.totals();
            const Release release;
            link.SetAccount(std::move(totals));
          },
          "account"_a, "For the metrics, and for the controller.")
      .def("set_cache_totals", &SetCacheTotals, "counters"_a, "misses"_a, "estimates"_a, "cache"_a,
           "What the metrics say of the cache: Skipper.counters, samples by reason, Worth.estimates(), and "
           "the ActivationCache, or None.")
      .def("counters", &CountersOf)
      .def("stop", &Stop, "finished"_a);
}

cache::Fingerprint ToFingerprint(const py::bytes& bytes) {
  const auto view = static_cast<std::string_view>(bytes);
  cache::Fingerprint fingerprint;
  if (view.size() != fingerprint.size()) throw py::value_error("a fingerprint has 16 bytes");
  std::copy(view.begin(), view.end(), fingerprint.begin());
  return fingerprint;
}

using SampleIds = std::vector<int64_t>;  // as Python has them; the cache's are their 64 bits

std::vector<uint64_t> Unsigned(const SampleIds& samples) { return {samples.begin(), samples.end()}; }

void ExpectBatches(ActivationCache& self, const std::vector<SampleIds>& batches) {
  std::vector<std::vector<uint64_t>> expected;
  for (const SampleIds& samples : batches) expected.push_back(Unsigned(samples));
  self.Expect(expected);
}

// A batch's tensors, none where nothing was found, and for each sample the reason why it is a miss, or "".
py::tuple TakeBatch(ActivationCache& self, const SampleIds& samples, const std::vector<uint64_t>& input_hashes,
                    double patience_seconds) {
  if (samples.size() != input_hashes.size()) throw py::value_error("samples and input_hashes differ in length");
  cache::CachedBatch batch;
  {
    const Release release;
    batch = self.Take(Unsigned(samples), input_hashes, patience_seconds);
  }
  py::list reasons;
  for (const cache::SampleOutcome outcome : batch.outcomes) {
    reasons.append(outcome == cache::SampleOutcome::kHit ? "" : cache::SampleOutcomeName(outcome));
  }
  return py::make_tuple(py::tuple(py::cast(batch.tensors)), reasons);
}

int64_t PutRows(ActivationCache& self, const SampleIds& samples, const std::vector<uint64_t>& input_hashes,
                const std::vector<at::Tensor>& tensors) {
  absl::StatusOr<int64_t> taken;
  {
    const Release release;
    taken = self.Put(Unsigned(samples), input_hashes, tensors);
  }
  return ValueOrRaise(std::move(taken));
}

void DropPrefixes(ActivationCache& self, const py::bytes& prefix, const std::string& scope) {
  using Scope = cache::CacheClient::Scope;
  if (scope != "prefix" && scope != "others" && scope != "all") {
    throw py::value_error("scope is prefix, others or all");
  }
  const cache::Fingerprint fingerprint = ToFingerprint(prefix);
  const Release release;
  self.Drop(fingerprint, scope == "prefix" ? Scope::kPrefix : scope == "others" ? Scope::kOthers : Scope::kAll);
}

py::dict CacheCounters(ActivationCache& self) {
  const cache::CacheClient::Counters line = self.client().counters();
  const cache::BatchReader::Counters reader = self.reader().counters();
  py::dict out;
  out["hits"] = reader.hits;
  out["absent"] = reader.absent;
  out["other_input"] = reader.other_input;
  out["corrupt"] = reader.corrupt;
  out["late"] = reader.late;
  out["unfit"] = reader.unfit;
  out["batches_ahead"] = reader.batches_ahead;
  out["batches_waited_for"] = reader.batches_waited_for;
  out["batches_late"] = reader.batches_late;
  out["waited_seconds"] = reader.waited_seconds;
  out["bytes_read"] = line.bytes_read;
  out["lookup_seconds"] = line.lookup_seconds;
  out["offered"] = line.offered;
  out["dropped"] = line.dropped;
  out["stored"] = line.stored;
  out["refused"] = line.refused;
  out["attached"] = line.attached;
  out["streamed"] = line.streamed;
  out["exact_bytes"] = line.exact_bytes;
  out["format_bytes"] = line.format_bytes;
  out["rounding"] = line.rounding;
  out["largest_rounding"] = line.largest_rounding;
  return out;
}

// state, reason, saved_seconds, and forward_seconds and fetch_seconds as far as they are known.
py::dict EstimatesOf(const cache::CostModel& model) {
  const cache::CostModel::Estimates estimates = model.estimates();
  py::dict out;
  out["state"] = cache::StateName(estimates.state);
  out["reason"] = estimates.reason;
  out["saved_seconds"] = estimates.saved_seconds;
  out["forward_seconds"] = py::cast(estimates.forward_seconds);
  out["fetch_seconds"] = py::cast(estimates.fetch_seconds);
  return out;
}

void DefineCache(py::module_& module) {
  using namespace pybind11::literals;
  module.def(
      "fingerprint",
      [](const std::string& text, const std::vector<at::Tensor>& tensors) {
        cache::Fingerprint fingerprint;
        {
          const Release release;
          fingerprint = cache::FingerprintOf(text, tensors);
        }
        return py::bytes(cache::RawBytes(fingerprint));
      },
      "text"_a, "tensors"_a, "16 bytes over the text and over the element type, shape and bytes of each tensor.");
  py::class_<cache::ContentWatch>(module, "ContentWatch", "Sees writes to tensors that their versions do not count.")
      .def(py::init<const std::vector<at::Tensor>&>(), "tensors"_a)
      .def("unchanged", &cache::ContentWatch::Unchanged,
           "The next look: at a part of each tensor that is dense in host memory, another one than before.");
  py::class_<ActivationCache, std::shared_ptr<ActivationCache>>(
      module, "ActivationCache",
      "A line to the node's egeria-cache. What fails is a miss, or is dropped. Used from the training thread; in a "
      "forked child every method does nothing.")
      .def(py::init([](const std::string& address, const std::string& job_id, const std::string& device,
                       const std::string& format, int64_t quota_bytes, size_t shared_bytes, double patience_seconds) {
             if (const absl::Status claimed = ClaimGrpc(); !claimed.ok()) Raise(claimed);
             return DroppedWithoutLock(
                 ValueOrRaise(ActivationCache::Start({.address = address,
                                                      .job_id = job_id,
                                                      .device = c10::Device(device),
                                                      .format = ValueOrRaise(cache::StorageFormatOf(format)),
                                                      .quota_bytes = quota_bytes,
                                                      .shared_bytes = shared_bytes,
                                                      .patience = absl::Seconds(patience_seconds)})));
           }),
           "address"_a, "job_id"_a, "device"_a = "cpu", "format"_a = "exact", "quota_bytes"_a = 0,
           "shared_bytes"_a = ActivationCache::Options().shared_bytes,
           "patience_seconds"_a = absl::ToDoubleSeconds(ActivationCache::Options().patience),
           "patience_seconds: with the daemon, of one lookup, besides what reading takes.")
      .def(
          "use", [](ActivationCache& self, const py::bytes& prefix) { self.Use(ToFingerprint(prefix)); }, "prefix"_a,
          "What is taken and put from now on is of this prefix.")
      .def("expect", &ExpectBatches, "batches"_a, py::call_guard<Release>(),
           "The samples of the batches that are taken next, in order: a hint, to read them ahead.")
      .def("take", &TakeBatch, "samples"_a, "input_hashes"_a, "patience_seconds"_a,
           "(b x ... tensors, none where nothing was found; for each sample why it is a miss, or \"\"). The rows of "
           "misses hold anything. Waits no longer than patience_seconds for what was not read ahead.")
      .def("put", &PutRows, "samples"_a, "input_hashes"_a, "tensors"_a,
           "Offers b x ... tensors, a row for each sample; returns how many samples wait to be written.")
      .def("drop", &DropPrefixes, "prefix"_a, "scope"_a, "Forgets this prefix, the others, or all of the job.")
      .def(
          "flush", [](ActivationCache& self, double seconds) { return self.client().Flush(absl::Seconds(seconds)); },
          "seconds"_a, py::call_guard<Release>(), "Waits until what was offered has been written.")
      .def("close", &ActivationCache::Stop, py::call_guard<Release>(),
           "Ends the line, within a second; from then on everything is a miss. Idempotent.")
      .def_property_readonly("attached", [](ActivationCache& self) { return self.client().attached(); })
      .def("counters", &CacheCounters);
  py::class_<cache::CostModel>(
      module, "CostModel",
      "Decides whether the training goes through the cache for a frozen prefix: see worker/cache/cost_model.h.")
      .def(py::init<>())
      .def("use", &cache::CostModel::Use, "At the beginning of a training pass: whether it goes through the cache.")
      .def("samples_repeat", &cache::CostModel::SamplesRepeat, "repeat"_a)
      .def("computed", &cache::CostModel::Computed, "seconds"_a, "The frozen layers' forward pass took so long.")
      .def("filled", &cache::CostModel::Filled, "seconds"_a, "Spent in a pass that was not skipped.")
      .def("fetched", &cache::CostModel::Fetched, "seconds"_a, "hit_share"_a, "Spent in a skipped pass.")
      .def("spent", &cache::CostModel::Spent, "seconds"_a, "What else the cache has cost.")
      .def("epoch_passed", &cache::CostModel::EpochPassed, "Every sample has come again.")
      .def_property_readonly_static("longest_patience",
                                    [](const py::object&) { return cache::CostModel::kLongestPatience; })
      .def_property_readonly("patience", &cache::CostModel::patience, "Seconds that a pass may wait for the cache.")
      .def("estimates", &EstimatesOf);
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  ConfigureLogging("egeria", LogLevel::kInfo);
  module.doc() = "What the Python package runs on: the agent, the agreement of the ranks, the partition.";
  module.attr("built_for_torch") = std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
  DefineRequests(module);
  DefineAccount(module);
  DefineLink(module);
  DefineCache(module);
  using namespace pybind11::literals;
  module.def("hash_tensors", &worker::HashTensors, "tensors"_a, py::call_guard<Release>(),
             "xxh3-64 over the element type, shape and bytes of each tensor, in order.");
  module.def("identical_on_all_ranks", &IdenticalOnAllRanks, "hash"_a, "group_name"_a = py::none(),
             "Whether every member of the group (over gloo) came with the same hash. A collective.");
  module.def("partition", &Partition, "blocks"_a, "patterns"_a = std::vector<std::string>(),
             "Cuts blocks (name, stage, parameter count) into layer modules (name, begin, end).");
  module.def("check_graph", &CheckGraph, "graph_json"_a,
             "Why the reference engine would refuse the graph, as far as can be told here; None if it would not.");
  module.def("reference_costs", &ReferenceCosts, "graph_json"_a, "weights"_a, "inputs"_a,
             "What a controller on this machine would measure of each reference backend on a sample: (name, seconds, "
             "noise, refusal), the float32 baseline last. `weights` are (name, tensor) pairs, `inputs` tensors of at "
             "least two samples, all on the host.");
  module.def(
      "planned_saving",
      [](const std::string& policy_json, int64_t total_steps, const std::vector<double>& step_shares, double budget,
         const std::vector<double>& learning_rates, int embedding_prefix) {
        return ValueOrRaise(
            worker::PlannedSaving(policy_json, total_steps, step_shares, budget, learning_rates, embedding_prefix));
      },
      "policy_json"_a, "total_steps"_a, "step_shares"_a, "budget"_a = 0.0, "learning_rates"_a = std::vector<double>(),
      "embedding_prefix"_a = 0, "The part of a training's time that a policy saves by the clock alone.");
  module.def("policies", &policy::DescribePolicies, "Every policy and its constants, as JSON.");
  module.def("check_policy_option", &CheckPolicyOption, "policy"_a, "constant"_a, "value_json"_a,
             "What the value of a policy's constant must be, in words; None where this one fits.");
  module.def("saved_before", &worker::SavedBefore, "step"_a, "changes"_a, "modules"_a, "step_shares"_a, "total_steps"_a,
             "The part of a training's time, 0..1, that was saved before `step` by (step, frozen prefix) changes.");
  module.def("reinvested_steps", &worker::ReinvestedSteps, "steps"_a, "saving"_a,
             "As many steps as take the time of `steps` when `saving` of it is saved.");
  module.def("random_job_id", [] { return JobId::Random().text(); }, "A new job's UUID.");
  module.def("set_log_level", &SetLogLevel, "level"_a, "debug, info, warning or error; for what C++ logs.");
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    const Release release;
    PythonLink::StopAll();
  }));
}

}  // namespace egeria::python

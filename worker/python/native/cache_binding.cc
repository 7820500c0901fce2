// Binds what egeria.cache and egeria.reference run on.
#include "worker/python/native/cache_binding.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/plasticity/compared.h"
#include "pybind11/functional.h"
#include "worker/cache/client/activation_cache.h"
#include "worker/cache/client/pass_ledger.h"
#include "worker/cache/client/tensor_hash.h"
#include "worker/cache/entry/int8_format.h"
#include "worker/python/native/interpreter.h"
#include "worker/python/native/python_link.h"
#include "worker/session/row_proof.h"

namespace egeria::python {
namespace {

using cache::ActivationCache;
using cache::PassLedger;
using worker::RowNumbers;
using worker::Tensors;

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

cache::CachedBatch Take(ActivationCache& self, const SampleIds& samples, const std::vector<uint64_t>& input_hashes,
                        double patience_seconds) {
  if (samples.size() != input_hashes.size()) throw py::value_error("samples and input_hashes differ in length");
  const Release release;
  return self.Take(Unsigned(samples), input_hashes, patience_seconds);
}

// Returns a batch's tensors, none where nothing was found, and for each sample why it is a miss, or "".
py::tuple TakeBatch(ActivationCache& self, const SampleIds& samples, const std::vector<uint64_t>& input_hashes,
                    double patience_seconds) {
  const cache::CachedBatch batch = Take(self, samples, input_hashes, patience_seconds);
  return py::make_tuple(py::tuple(py::cast(batch.tensors)), cache::MissReasons(batch.outcomes));
}

// Returns what TakeBatch() does, and the lengths of the rows.
py::tuple TakeRagged(ActivationCache& self, const SampleIds& samples, const std::vector<uint64_t>& input_hashes,
                     double patience_seconds) {
  const cache::CachedBatch batch = Take(self, samples, input_hashes, patience_seconds);
  return py::make_tuple(py::tuple(py::cast(batch.tensors)), cache::MissReasons(batch.outcomes), batch.lengths);
}

int64_t PutRows(ActivationCache& self, const SampleIds& samples, const std::vector<uint64_t>& input_hashes,
                const std::vector<at::Tensor>& tensors, const std::vector<std::vector<int64_t>>& lengths) {
  absl::StatusOr<int64_t> taken;
  {
    const Release release;
    taken = self.Put(Unsigned(samples), input_hashes, tensors, lengths);
  }
  return ValueOrRaise(std::move(taken));
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
  out["offer_seconds"] = line.offer_seconds;
  out["write_seconds"] = line.write_seconds;
  out["daemon_seconds"] = line.daemon_seconds;
  out["attached"] = line.attached;
  out["streamed"] = line.streamed;
  out["exact_bytes"] = line.exact_bytes;
  out["format_bytes"] = line.format_bytes;
  out["rounding"] = line.rounding;
  out["largest_rounding"] = line.largest_rounding;
  return out;
}

// Returns hits, misses, passes and so on, and with "miss_" before it each reason why samples were computed. Passes
// without sample ids are none of the misses, which are samples.
py::dict CountersOf(const PassLedger& ledger) {
  const PassLedger::Counts& counts = ledger.counts();
  py::dict out;
  int64_t misses = 0;
  for (const auto& [reason, samples] : counts.misses) {
    out[py::str("miss_" + reason)] = samples;
    if (reason != "no_ids") misses += samples;
  }
  out["hits"] = counts.hits;
  out["misses"] = misses;
  out["passes"] = counts.passes;
  out["passes_skipped"] = counts.passes_skipped;
  out["passes_spared"] = counts.passes_spared;
  out["proofs"] = counts.proofs;
  out["audits"] = counts.audits;
  out["failures"] = counts.failures;
  return out;
}

// Returns state, reason, saved_seconds, and forward_seconds and fetch_seconds as far as they are known.
py::dict EstimatesOf(const PassLedger& ledger) {
  const cache::CostModel::Estimates estimates = ledger.estimates();
  py::dict out;
  out["state"] = cache::StateName(estimates.state);
  out["reason"] = estimates.reason;
  out["saved_seconds"] = estimates.saved_seconds;
  out["forward_seconds"] = py::cast(estimates.forward_seconds);
  out["fetch_seconds"] = py::cast(estimates.fetch_seconds);
  return out;
}

// Returns b x ... float32 values as they are kept in the format "int8"; other types, and rows that the format does not
// take, as they are.
at::Tensor AsInt8(const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().to(at::kCPU).contiguous();
  if (host.scalar_type() != at::kFloat || host.dim() == 0) return host;
  at::Tensor kept = host.clone();
  const auto rows = static_cast<size_t>(host.size(0));
  const size_t values = rows == 0 ? 0 : static_cast<size_t>(host.numel()) / rows;
  std::vector<std::byte> stored(values * sizeof(float));
  std::vector<float> rounded;
  for (size_t i = 0; i < rows; ++i) {
    const std::span<const float> row(host.const_data_ptr<float>() + i * values, values);
    if (cache::StoreInt8(host.sizes().slice(1), row, stored, &rounded) == 0) continue;
    std::copy(rounded.begin(), rounded.end(), kept.mutable_data_ptr<float>() + i * values);
  }
  return kept;
}

void DefineLine(py::module_& module) {
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
  module.def(
      "hash_rows",
      [](const std::vector<at::Tensor>& tensors, const py::bytes& salt) {
        const auto text = static_cast<std::string>(salt);
        const Release release;
        return cache::HashRows(tensors, text);
      },
      "tensors"_a, "salt"_a,
      "64 bits for each row: over the salt, and over the element type, shape and bytes of the row in each of the "
      "tensors, which are dense, in host memory, and have as many rows each.");
  module.def("as_int8", &AsInt8, "tensor"_a, py::call_guard<Release>(),
             "b x ... values as the format \"int8\" gives them back, in host memory.");
  module.def(
      "forbid_reads",
      [](const at::Tensor& tensor, const std::string& why) {
        tensor.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(why);
      },
      "tensor"_a, "why"_a, "Whoever asks for the tensor's memory, which need not be there, gets a RuntimeError.");
  py::class_<ActivationCache, std::shared_ptr<ActivationCache>>(
      module, "ActivationCache",
      "A line to the node's egeria-cache. A failure is a miss, or drops the entry. Several in a process work side by "
      "side, "
      "each with shared_bytes of memory and a prefix of its own. Used from the training thread; in a forked child "
      "every method does nothing.")
      .def(py::init([](const std::string& address, const std::string& job_id, const std::string& device,
                       const std::string& format, int64_t quota_bytes, size_t shared_bytes, double patience_seconds) {
             if (const absl::Status claimed = ClaimGrpc(); !claimed.ok()) Raise(claimed);
             return DroppedWithoutLock(
                 ValueOrRaise(ActivationCache::Start({.address = address,
                                                      .job_id = job_id,
                                                      .device = c10::Device(device),
                                                      .format = ValueOrRaise(cache::WantedFormatOf(format)),
                                                      .quota_bytes = quota_bytes,
                                                      .shared_bytes = shared_bytes,
                                                      .patience = absl::Seconds(patience_seconds)})));
           }),
           "address"_a, "job_id"_a, "device"_a = "cpu", "format"_a = "exact", "quota_bytes"_a = 0,
           "shared_bytes"_a = ActivationCache::Options().shared_bytes,
           "patience_seconds"_a = absl::ToDoubleSeconds(ActivationCache::Options().patience),
           "patience_seconds: with the daemon, of one lookup, besides what reading takes.")
      .def(
          "use",
          [](ActivationCache& self, const py::bytes& prefix, bool ragged) { self.Use(ToFingerprint(prefix), ragged); },
          "prefix"_a, "ragged"_a = false,
          "Entries are taken and put for this prefix from then on. The rows of a ragged one may differ in length, "
          "which "
          "is "
          "their first dimension.")
      .def("expect", &ExpectBatches, "batches"_a, py::call_guard<Release>(),
           "The samples of the batches that are taken next, in order: a hint, to read them ahead.")
      .def("take", &TakeBatch, "samples"_a, "input_hashes"_a, "patience_seconds"_a,
           "(b x ... tensors, none where nothing was found; for each sample why it is a miss, or \"\"). The rows of "
           "misses hold anything. Waits at most patience_seconds for samples that were not read ahead.")
      .def("take_ragged", &TakeRagged, "samples"_a, "input_hashes"_a, "patience_seconds"_a,
           "The same of a ragged prefix, and for each tensor the rows' lengths, 0 for misses; [] where rows have no "
           "dimension. Tensors are as long as their longest row, with zeros behind shorter ones.")
      .def("put", &PutRows, "samples"_a, "input_hashes"_a, "tensors"_a,
           "lengths"_a = std::vector<std::vector<int64_t>>(),
           "Offers b x ... tensors, a row for each sample; returns how many samples wait to be written. `lengths` says "
           "for each tensor how long its rows are, what is behind not being kept; [] for whole ones.")
      .def(
          "drop",
          [](ActivationCache& self, const py::bytes& prefix) {
            const cache::Fingerprint fingerprint = ToFingerprint(prefix);
            const Release release;
            self.Drop(fingerprint);
          },
          "prefix"_a, "Forgets this prefix.")
      .def(
          "flush", [](ActivationCache& self, double seconds) { return self.client().Flush(absl::Seconds(seconds)); },
          "seconds"_a, py::call_guard<Release>(), "Waits until what was offered has been written.")
      .def("close", &ActivationCache::Stop, py::call_guard<Release>(),
           "Ends the line, within a second; from then on everything is a miss. Idempotent.")
      .def_property_readonly("attached", [](ActivationCache& self) { return self.client().attached(); })
      .def("counters", &CacheCounters);
}

const char* NameOf(PassLedger::Step step) {
  switch (step) {
    case PassLedger::Step::kSkip: return "skip";
    case PassLedger::Step::kAudit: return "audit";
    case PassLedger::Step::kCompute: break;
  }
  return "compute";
}

void DefineLedger(py::module_& module) {
  using namespace pybind11::literals;
  py::class_<PassLedger>(module, "PassLedger",
                         "Says what becomes of each pass over a frozen prefix, and keeps the books: see "
                         "worker/cache/client/pass_ledger.h.")
      .def(py::init<PassLedger::Clock, bool>(), "clock"_a, "always"_a = false,
           "clock(wait): seconds of a steady clock, with `wait` once the device has done what it was given.")
      .def("follow", &PassLedger::Follow, "Another prefix is frozen, or none.")
      .def("samples_repeat", &PassLedger::SamplesRepeat, "repeat"_a)
      .def("samples_may_repeat", &PassLedger::SamplesMayRepeat, "likely"_a)
      .def("epoch_passed", &PassLedger::EpochPassed, "Every sample has come again.")
      .def("begin", &PassLedger::Begin, "samples"_a, "on_host"_a,
           "A training pass begins; whether it goes through the cache.")
      .def("missed", &PassLedger::Missed, "reason"_a, "samples"_a)
      .def("failed", &PassLedger::Failed, "samples"_a)
      .def("now", &PassLedger::Now)
      .def("spent", &PassLedger::Spent, "since"_a)
      .def("proved", &PassLedger::Proved, "since"_a)
      .def("ask", &PassLedger::Ask)
      .def("answer", &PassLedger::Answer, "reasons"_a, "fits"_a, "The positions of the samples that are missing.")
      .def(
          "decide", [](PassLedger& self, bool filled) { return NameOf(self.Decide(filled)); }, "filled"_a,
          "\"skip\", \"compute\" or \"audit\".")
      .def("resume", &PassLedger::Resume)
      .def("skipped", &PassLedger::Skipped)
      .def("kept", &PassLedger::Kept, "seconds_behind"_a = 0.0,
           "seconds_behind: of processor time that others have spent on writing so far.")
      .def("spared", &PassLedger::Spared, "seconds"_a, "The pass began behind a shallower prefix.")
      .def("begin_compute", &PassLedger::BeginCompute)
      .def("end_compute", &PassLedger::EndCompute)
      .def("patience", &PassLedger::patience, "longest"_a, "Seconds that a pass may wait for the cache.")
      .def("news", &PassLedger::News, "The decisions since the last call, for people.")
      .def_property("skippable", &PassLedger::skippable, &PassLedger::set_skippable,
                    "Passes that were or might have been skipped, by which audits are due.")
      .def_property_readonly("spent_seconds", &PassLedger::spent_seconds)
      .def_property_readonly_static("longest_patience",
                                    [](const py::object&) { return cache::CostModel::kLongestPatience; })
      .def("counters", &CountersOf)
      .def("estimates", &EstimatesOf);
}

using PythonRows = std::function<Tensors(const RowNumbers&)>;
using PythonPredicate = std::optional<std::function<bool(const RowNumbers&)>>;

Tensors ProveRows(const PythonRows& compute, const Tensors& whole, int64_t noisy, const PythonPredicate& comparable) {
  return worker::ProveRows(compute, whole, noisy, comparable.value_or(worker::AnyRows));
}

// Only Python's Exceptions say that a model cannot compute so few samples; an interrupt goes on.
bool SameAlone(const PythonRows& compute, const Tensors& whole, int64_t size, const PythonPredicate& comparable) {
  std::optional<py::error_already_set> interrupt;
  const auto guarded = [&](const RowNumbers& rows) {
    try {
      return compute(rows);
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) interrupt.emplace(error);
      throw;
    }
  };
  const bool same = worker::SameAlone(guarded, whole, size, comparable.value_or(worker::AnyRows));
  if (interrupt.has_value()) throw *interrupt;
  return same;
}

void DefineRowProof(py::module_& module) {
  using namespace pybind11::literals;
  module.def("same_bits", &worker::SameBits, "a"_a, "b"_a, "Equal in type, shape and bits.");
  module.def("same_rows", &worker::SameRows, "some"_a, "whole"_a, "rows"_a,
             "Whether `some` are tensors of those rows of `whole`, to the bit.");
  module.def("disturbed", &worker::Disturbed, "batch"_a,
             "The tensors with noise as large as their own spread, where they are finite and floating-point; [] where "
             "none is.");
  module.def(
      "prove_rows", &ProveRows, "compute"_a, "whole"_a, "noisy"_a, "comparable"_a = py::none(),
      "Shows that in whole batches neither a sample's place matters nor which others there are. compute(rows) gives "
      "the tensors of these samples. `noisy` more stand behind them, the last ones with noise: noisy_rows(), all or "
      "none. comparable(rows) says whether they may be expected to be the same. Returns the tensors of all of these "
      "samples, or [] if the place or the others matter.");
  module.def("noisy_rows", &worker::NoisyRows, "whole"_a, "With how many samples with noise enough is compared.");
  module.def("alternating_rows", &worker::AlternatingRows, "batch"_a,
             "The rows of a batch of as many samples, every other one with noise.");
  module.def("same_alone", &SameAlone, "compute"_a, "whole"_a, "size"_a, "comparable"_a = py::none(),
             "Whether `size` samples alone give what they give in the whole batch.");
  module.def("sizes_alone", &worker::SizesAlone, "batch"_a, "The numbers of samples that are tried alone, ascending.");
}

plasticity::ActivationMetric MetricOf(const std::string& name) {
  return name == "sp" ? plasticity::ActivationMetric::kSpLoss : plasticity::ActivationMetric::kActivationNorm;
}

}  // namespace

void DefineCache(py::module_& module) {
  DefineLine(module);
  DefineLedger(module);
  DefineRowProof(module);
}

void DefineMetrics(py::module_& module) {
  using namespace pybind11::literals;
  module.def(
      "compared",
      [](const at::Tensor& activation, const std::string& metric) {
        return plasticity::Compared(MetricOf(metric), activation);
      },
      "activation"_a, "metric"_a, py::call_guard<Release>(),
      "The part of an activation b x ... that a metric compares, in float32: the Gram matrix (\"sp\", b x b), or the "
      "rows "
      "(\"norm\", b x d).");
  module.def(
      "distance",
      [](const at::Tensor& training, const at::Tensor& reference, const std::string& metric) {
        const absl::StatusOr<double> distance = [&] {
          const Release release;
          return plasticity::DistanceOf(MetricOf(metric), training, reference);
        }();
        if (!distance.ok()) throw py::value_error(std::string(distance.status().message()));
        return *distance;
      },
      "training"_a, "reference"_a, "metric"_a,
      "How far what compared() gave of two models is apart, as the controller computes it. Raises ValueError: they "
      "differ in size, are of under two samples, or have an element that is infinite or not a number.");
}

}  // namespace egeria::python

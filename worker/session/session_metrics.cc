#include "worker/session/session_metrics.h"

#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/thread/mutex.h"
#include "prometheus/counter.h"
#include "prometheus/exposer.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace egeria::worker {

struct SessionMetrics::Impl {
  explicit Impl(std::string job) : training_job(std::move(job)) {}

  prometheus::Counter* Counter(const std::string& name, const std::string& help,
                               std::map<std::string, std::string> labels = {}) {
    labels["training_job"] = training_job;
    return &prometheus::BuildCounter().Name("egeria_worker_" + name).Help(help).Register(*registry).Add(labels);
  }
  prometheus::Gauge* Gauge(const std::string& name, const std::string& help,
                           std::map<std::string, std::string> labels = {}) {
    labels["training_job"] = training_job;
    return &prometheus::BuildGauge().Name("egeria_worker_" + name).Help(help).Register(*registry).Add(labels);
  }

  const std::string training_job;
  const std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  prometheus::Counter* const steps = Counter("steps_total", "Optimizer steps done, including restored ones.");
  prometheus::Gauge* const frozen_prefix =
      Gauge("frozen_prefix", "Layer modules that are frozen, counted from the input.");
  prometheus::Gauge* const frozen_by_script =
      Gauge("frozen_by_script", "Layer modules that the script has frozen by itself, counted from the input.");
  prometheus::Gauge* const frozen_share =
      Gauge("frozen_parameters_ratio", "Share of the model's parameters that is frozen, 0 to 1.");
  prometheus::Counter* const freezes =
      Counter("switches_total", "Changes of the frozen prefix that took effect.", {{"action", "freeze"}});
  prometheus::Counter* const unfreezes =
      Counter("switches_total", "Changes of the frozen prefix that took effect.", {{"action", "unfreeze"}});
  prometheus::Counter* const undone =
      Counter("switches_undone_total",
              "Changes of the frozen prefix that a rank could not make, so that all ranks undid them.");
  prometheus::Counter* const commits =
      Counter("commits_total", "Plans that all ranks agreed on and applied at the same step.");
  prometheus::Counter* const disputed =
      Counter("plans_disputed_total", "Plans that did not say the same on all ranks, and were dropped.");
  prometheus::Counter* const mismatches = Counter(
      "checksum_mismatches_total", "Switches after which the ranks' parameters differed. Anything but 0 is a fault.");
  prometheus::Counter* const bytes_reduced =
      Counter("allreduced_bytes_total", "Gradient bytes that this process handed to all_reduce.");
  prometheus::Counter* const samples_sent = Counter("samples_sent_total", "Samples sent to the controller.");
  prometheus::Counter* const samples_dropped = Counter(
      "samples_dropped_total", "Samples dropped because the controller was slow or away; training did not wait.");
  prometheus::Counter* const snapshots_sent =
      Counter("snapshots_sent_total", "Snapshots of a layer module sent to the controller.");
  prometheus::Counter* const snapshot_bytes =
      Counter("snapshot_bytes_total", "Bytes of the snapshots that were taken.");
  prometheus::Counter* const reconnects =
      Counter("reconnects_total", "Times that the stream to the controller was opened again.");
  prometheus::Gauge* const connected =
      Gauge("stream_connected", "1 while the stream to the controller is open, else 0.");
  prometheus::Gauge* const build_info = &prometheus::BuildGauge()
                                             .Name("egeria_worker_build_info")
                                             .Help("Always 1; the labels say which build this is.")
                                             .Register(*registry)
                                             .Add({{"training_job", training_job}, {"version", Version()}});

  // These tell the account; they appear with the first number.
  prometheus::Gauge* SavedSeconds() {
    return Gauge("saved_seconds", "Time that freezing has saved, by the mean times of steps.");
  }
  prometheus::Counter* SpentSeconds(const std::string& what) {
    return Counter("spent_seconds_total", "Time of the training thread that Egeria has taken, by what for.",
                   {{"what", what}});
  }

  // These tell of the cache. Those with labels appear with the first number.
  prometheus::Counter* CacheSamples(const std::string& result) {
    return Counter("cache_samples_total",
                   "Samples of passes with frozen layer modules that asked the cache, by result.",
                   {{"result", result}});
  }
  prometheus::Counter* const skipped_passes =
      Counter("cache_skipped_passes_total", "Passes in which frozen layer modules were skipped.");
  prometheus::Counter* const proofs =
      Counter("cache_proofs_total", "Times that it was proven what may be taken from the cache.");
  prometheus::Counter* const audits =
      Counter("cache_audits_total", "Passes that were computed to be compared with what the cache had.");
  prometheus::Gauge* const saved_seconds =
      Gauge("cache_saved_seconds", "Time saved by the cache, less what it has cost; estimated.");
  prometheus::Gauge* const forward_seconds =
      Gauge("cache_forward_seconds", "Time of one pass of the frozen layer modules; 0 while it is not known.");
  prometheus::Gauge* const fetch_seconds =
      Gauge("cache_fetch_seconds", "Time of one pass in which they were skipped; 0 while it is not known.");
  prometheus::Counter* CacheBatches(const std::string& reading) {
    return Counter("cache_batches_total",
                   "Batches asked of the cache, by whether they had been read when it was their turn.",
                   {{"reading", reading}});
  }
  prometheus::Counter* const waited_seconds =
      Counter("cache_waited_seconds_total", "Time that the training thread has waited for the cache.");
  prometheus::Counter* const lookup_seconds =
      Counter("cache_lookup_seconds_total", "Time that the thread which reads ahead has spent on reading.");
  prometheus::Counter* const read_bytes = Counter("cache_read_bytes_total", "Bytes of the entries that it has read.");
  prometheus::Gauge* CacheState(const std::string& state) {
    return Gauge("cache_state", "1 for what the cost model has decided.", {{"state", state}});
  }
  Mutex update_mutex;  // lets one update be made at a time, so that counters only rise
  std::string cache_state ABSL_GUARDED_BY(update_mutex);  // the state that is shown
  std::unique_ptr<prometheus::Exposer> exposer;
};

SessionMetrics::SessionMetrics(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SessionMetrics::~SessionMetrics() = default;

absl::StatusOr<std::unique_ptr<SessionMetrics>> SessionMetrics::Serve(const std::string& address,
                                                                      const std::string& training_job) {
  const size_t colon = address.rfind(':');
  const std::string host = colon == std::string::npos ? "127.0.0.1" : address.substr(0, colon);
  const std::string port = colon == std::string::npos ? address : address.substr(colon + 1);
  int number = 0;
  if (host.empty() || !absl::SimpleAtoi(port, &number) || number < 0 || number > 65535) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_ADDRESS", "cannot serve metrics on '", address,
                      "': give HOST:PORT or PORT");
  }
  auto impl = std::make_unique<Impl>(training_job);
  impl->build_info->Set(1);
  try {
    impl->exposer = std::make_unique<prometheus::Exposer>(absl::StrCat(host, ":", number), /*num_threads=*/1);
    impl->exposer->RegisterCollectable(impl->registry);
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN", "cannot serve metrics on ", address, ": ",
                      error.what());
  }
  return std::unique_ptr<SessionMetrics>(new SessionMetrics(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<SessionMetrics>> SessionMetrics::ServeIfFree(const std::string& address,
                                                                            const std::string& training_job) {
  absl::StatusOr<std::unique_ptr<SessionMetrics>> metrics = Serve(address, training_job);
  if (!absl::IsUnavailable(metrics.status())) return metrics;
  LogWarning(metrics.status().message(), ": this process trains on without; give each session a port of its own");
  return nullptr;
}

void SessionMetrics::Update(const SessionTotals& totals) {
  const MutexLock lock(&impl_->update_mutex);
  auto raise = [](prometheus::Counter* counter, double total) {
    if (total > counter->Value()) counter->Increment(total - counter->Value());
  };
  raise(impl_->steps, totals.steps);
  impl_->frozen_prefix->Set(totals.frozen_prefix);
  impl_->frozen_by_script->Set(totals.frozen_by_script);
  impl_->frozen_share->Set(totals.frozen_share);
  raise(impl_->freezes, totals.freezes);
  raise(impl_->unfreezes, totals.unfreezes);
  raise(impl_->undone, totals.switches_undone);
  raise(impl_->commits, totals.commits);
  raise(impl_->disputed, totals.plans_disputed);
  raise(impl_->mismatches, totals.checksum_mismatches);
  raise(impl_->bytes_reduced, totals.bytes_reduced);
  raise(impl_->samples_sent, totals.samples_sent);
  raise(impl_->samples_dropped, totals.samples_dropped);
  raise(impl_->snapshots_sent, totals.snapshots_sent);
  raise(impl_->snapshot_bytes, totals.snapshot_bytes);
  raise(impl_->reconnects, totals.reconnects);
  impl_->connected->Set(totals.connected ? 1 : 0);
  if (totals.account.saved_seconds) impl_->SavedSeconds()->Set(*totals.account.saved_seconds);
  for (const auto& [what, seconds] : totals.account.spent_seconds) raise(impl_->SpentSeconds(what), seconds);
  const CacheTotals& cache = totals.cache;
  if (cache.state == "none") return;
  raise(impl_->CacheSamples("hit"), cache.hits);
  for (const auto& [reason, samples] : cache.misses) raise(impl_->CacheSamples(reason), samples);
  raise(impl_->skipped_passes, cache.passes_skipped);
  raise(impl_->proofs, cache.proofs);
  raise(impl_->audits, cache.audits);
  for (const auto& [reading, batches] : cache.batches) raise(impl_->CacheBatches(reading), batches);
  raise(impl_->waited_seconds, cache.waited_seconds);
  raise(impl_->lookup_seconds, cache.lookup_seconds);
  raise(impl_->read_bytes, cache.bytes_read);
  impl_->saved_seconds->Set(cache.saved_seconds);
  impl_->forward_seconds->Set(cache.forward_seconds);
  impl_->fetch_seconds->Set(cache.fetch_seconds);
  if (!impl_->cache_state.empty()) impl_->CacheState(impl_->cache_state)->Set(0);
  impl_->CacheState(cache.state)->Set(1);
  impl_->cache_state = cache.state;
}

int SessionMetrics::port() const { return impl_->exposer->GetListeningPorts().front(); }

std::string SessionMetrics::Text() const { return prometheus::TextSerializer().Serialize(impl_->registry->Collect()); }

}  // namespace egeria::worker

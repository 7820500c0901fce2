#include "worker/cache/daemon/cache_metrics.h"

#include <utility>

#include "common/base/version.h"
#include "common/metrics/family.h"

namespace egeria::cache {
namespace {

using metrics::Family;

const char* NameOf(ActivationStore::Outcome outcome) {
  switch (outcome) {
    case ActivationStore::Outcome::kStored: return "stored";
    case ActivationStore::Outcome::kPresent: return "present";
    case ActivationStore::Outcome::kOverQuota: return "over_quota";
    case ActivationStore::Outcome::kNoSpace: return "no_space";
    case ActivationStore::Outcome::kBusy: return "busy";
    case ActivationStore::Outcome::kFailed: return "failed";
  }
  return "unknown";
}

void AddOne(std::vector<prometheus::MetricFamily>* families, Family family, double value) {
  family.Add({}, value);
  std::move(family).MoveTo(families);
}

}  // namespace

std::vector<prometheus::MetricFamily> CacheMetrics::Collect() const {
  const CacheService::Counters counters = server_->service().counters();
  const ActivationStore::Totals totals = server_->store().totals();
  std::vector<prometheus::MetricFamily> families = metrics::ProcessMetrics();
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  AddOne(&families, Family::Gauge("egeria_cache_sessions", "Training processes that are attached."),
         number(counters.sessions));
  AddOne(&families, Family::Gauge("egeria_cache_entries", "Entries that are kept."), number(totals.entries));
  AddOne(&families, Family::Gauge("egeria_cache_stored_bytes", "What they and their keys take."), number(totals.bytes));
  AddOne(&families, Family::Gauge("egeria_cache_memory_bytes", "What those take that are in memory, too."),
         number(totals.memory_bytes));
  AddOne(&families, Family::Counter("egeria_cache_memory_hits_total", "Entries found that took no file."),
         number(counters.memory_hits));
  AddOne(&families, Family::Gauge("egeria_cache_namespaces", "Jobs that have entries or sessions."),
         number(totals.namespaces));
  AddOne(&families, Family::Counter("egeria_cache_read_bytes_total", "Bytes of entries that were found."),
         number(counters.bytes_read));
  AddOne(&families, Family::Counter("egeria_cache_written_bytes_total", "Bytes of entries that were stored."),
         number(counters.bytes_written));
  AddOne(&families, Family::Counter("egeria_cache_evicted_bytes_total", "Bytes that went to make room."),
         number(totals.evicted_bytes));
  AddOne(&families, Family::Counter("egeria_cache_store_failures_total", "Reads and writes that the store refused."),
         number(totals.failures));
  AddOne(&families, Family::Gauge("egeria_healthy", "1, or 0 while /healthz says what is wrong."),
         health_->Healthy().ok() ? 1 : 0);
  Family gets = Family::Counter("egeria_cache_gets_total", "Entries asked for, by whether they were there.");
  gets.Add({{"result", "hit"}}, number(counters.hits));
  gets.Add({{"result", "miss"}}, number(counters.misses));
  std::move(gets).MoveTo(&families);
  Family puts = Family::Counter("egeria_cache_puts_total", "Entries offered, by what became of them.");
  for (const auto& [outcome, count] : counters.puts) puts.Add({{"result", NameOf(outcome)}}, number(count));
  std::move(puts).MoveTo(&families);
  Family build = Family::Gauge("egeria_build_info", "Always 1; the version is in the label.");
  build.Add({{"version", Version()}}, 1);
  std::move(build).MoveTo(&families);
  return families;
}

}  // namespace egeria::cache

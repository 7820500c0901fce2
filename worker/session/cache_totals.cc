#include "worker/session/cache_totals.h"

#include "worker/cache/client/activation_cache.h"
#include "worker/cache/client/pass_ledger.h"

namespace egeria::worker {
namespace {

void AddReading(cache::ActivationCache& cache, CacheTotals* totals) {
  const cache::BatchReader::Counters reader = cache.reader().counters();
  const cache::CacheClient::Counters line = cache.client().counters();
  totals->batches = {
      {"ahead", reader.batches_ahead}, {"waited_for", reader.batches_waited_for}, {"late", reader.batches_late}};
  totals->waited_seconds = reader.waited_seconds;
  totals->lookup_seconds = line.lookup_seconds;
  totals->bytes_read = line.bytes_read;
}

}  // namespace

CacheTotals TotalsOf(const cache::PassLedger& ledger, cache::ActivationCache* cache) {
  const cache::PassLedger::Counts& counts = ledger.counts();
  const cache::CostModel::Estimates estimates = ledger.estimates();
  CacheTotals totals;
  totals.hits = counts.hits;
  totals.misses = counts.misses;
  totals.passes = counts.passes;
  totals.passes_skipped = counts.passes_skipped;
  totals.proofs = counts.proofs;
  totals.audits = counts.audits;
  totals.saved_seconds = estimates.saved_seconds;
  totals.spent_seconds = ledger.spent_seconds();
  totals.forward_seconds = estimates.forward_seconds.value_or(0);
  totals.fetch_seconds = estimates.fetch_seconds.value_or(0);
  totals.state = StateName(estimates.state);
  totals.reason = estimates.reason;
  if (cache != nullptr) AddReading(*cache, &totals);
  return totals;
}

}  // namespace egeria::worker

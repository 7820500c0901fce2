#include "worker/session/cache_totals.h"

#include "worker/cache/client/activation_cache.h"

namespace egeria::worker {

void AddReading(cache::ActivationCache& cache, CacheTotals* totals) {
  const cache::BatchReader::Counters reader = cache.reader().counters();
  const cache::CacheClient::Counters line = cache.client().counters();
  totals->batches = {
      {"ahead", reader.batches_ahead}, {"waited_for", reader.batches_waited_for}, {"late", reader.batches_late}};
  totals->waited_seconds = reader.waited_seconds;
  totals->lookup_seconds = line.lookup_seconds;
  totals->bytes_read = line.bytes_read;
}

}  // namespace egeria::worker

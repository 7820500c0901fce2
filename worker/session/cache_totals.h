#ifndef EGERIA_WORKER_SESSION_CACHE_TOTALS_H_
#define EGERIA_WORKER_SESSION_CACHE_TOTALS_H_

#include <cstdint>
#include <map>
#include <string>

namespace egeria::cache {
class ActivationCache;
}  // namespace egeria::cache

namespace egeria::worker {

// What the cache of frozen activations has done for one training process, as of now.
struct CacheTotals {
  int64_t hits = 0;                       // samples whose frozen forward pass was skipped
  std::map<std::string, int64_t> misses;  // samples, by reason
  int64_t passes = 0;                     // training passes with frozen layer modules
  int64_t passes_skipped = 0;
  int64_t proofs = 0;  // passes in which it was proven that others may be skipped
  int64_t audits = 0;  // passes that were computed to be compared with what the cache had
  std::map<std::string, int64_t>
      batches;                // that were asked for: "ahead" was there, "waited_for" came in time, or "late"
  double waited_seconds = 0;  // of the training thread, for those
  double lookup_seconds = 0;  // of the thread that reads ahead
  int64_t bytes_read = 0;
  double saved_seconds = 0;    // less what was spent; estimated
  double spent_seconds = 0;    // on asking, keeping and proving
  double forward_seconds = 0;  // of the frozen layer modules in one pass; 0: not known, as the next
  double fetch_seconds = 0;    // of a pass that was skipped
  std::string state = "none";  // "unfrozen", "unknown", "trying", "on", "off" or "refused"; "none": there is no cache
  std::string reason;          // for people
};

// Takes over what reading from the cache has come to: batches, seconds and bytes.
void AddReading(cache::ActivationCache& cache, CacheTotals* totals);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_CACHE_TOTALS_H_

#ifndef EGERIA_WORKER_SESSION_CACHE_TOTALS_H_
#define EGERIA_WORKER_SESSION_CACHE_TOTALS_H_

#include <cstdint>
#include <map>
#include <string>

namespace egeria::cache {
class ActivationCache;
class PassLedger;
}  // namespace egeria::cache

namespace egeria::worker {

// Says what the cache of frozen activations has done for one training process, as of now.
struct CacheTotals {
  int64_t hits = 0;                       // samples whose frozen forward pass was skipped
  std::map<std::string, int64_t> misses;  // numbers of samples, by reason
  int64_t passes = 0;                     // training passes with frozen layer modules
  int64_t passes_skipped = 0;
  int64_t proofs = 0;  // passes in which it was proven that others may be skipped
  int64_t audits = 0;  // passes that were computed to be compared with what the cache had
  // Batches that were asked for: "ahead" was there, "waited_for" came in time, or "late".
  std::map<std::string, int64_t> batches;
  double waited_seconds = 0;  // the training thread's, for those
  double lookup_seconds = 0;  // the reading thread's
  int64_t bytes_read = 0;
  double saved_seconds = 0;    // less what was spent; estimated
  double spent_seconds = 0;    // on asking, keeping and proving
  double forward_seconds = 0;  // one pass of the frozen layer modules; 0: not known
  double fetch_seconds = 0;    // one pass that was skipped; 0: not known
  std::string state = "none";  // "unfrozen", "unknown", "trying", "on", "off" or "refused"; "none": there is no cache
  std::string reason;          // in words, for people
};

// Returns the ledger's books and, where there is a cache, what reading from it has come to. A front end that has frozen
// nothing, or refuses to skip what is frozen, puts another state and reason.
CacheTotals TotalsOf(const cache::PassLedger& ledger, cache::ActivationCache* cache);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_CACHE_TOTALS_H_

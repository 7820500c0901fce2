#ifndef EGERIA_WORKER_SESSION_SESSION_METRICS_H_
#define EGERIA_WORKER_SESSION_SESSION_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/accounting/time_ledger.h"
#include "worker/session/cache_totals.h"

namespace egeria::worker {

// These are the totals of one training process, as of now.
struct SessionTotals {
  int64_t steps = 0;
  int frozen_prefix = 0;
  int frozen_by_script = 0;  // layer modules
  double frozen_share = 0;   // a share of the parameters
  int64_t freezes = 0;       // switches of this direction
  int64_t unfreezes = 0;
  int64_t switches_undone = 0;  // one rank could not make the change, so none did
  int64_t commits = 0;          // plans that the ranks agreed on
  int64_t plans_disputed = 0;   // plans that did not say the same on all ranks, and were dropped
  int64_t checksum_mismatches = 0;
  int64_t bytes_reduced = 0;
  int64_t samples_sent = 0;
  int64_t samples_dropped = 0;
  int64_t snapshots_sent = 0;
  int64_t snapshot_bytes = 0;
  int64_t reconnects = 0;
  bool connected = false;
  TimeTotals account;
  CacheTotals cache;
};

// Serves a training process's totals at http://ADDRESS:PORT/metrics for Prometheus. Every metric carries the
// label training_job; never the rank, which the scraped address tells. docs/reference/metrics.md lists them.
//
// It is thread-safe: Update() stores numbers, and the server's threads read them. The destructor ends the server.
class SessionMetrics {
 public:
  // `address` is "host:port" or "port"; port 0 takes a free one. A bare port means 127.0.0.1.
  // Errors: INVALID_ARGUMENT [BAD_ADDRESS]; UNAVAILABLE [CANNOT_LISTEN].
  static absl::StatusOr<std::unique_ptr<SessionMetrics>> Serve(const std::string& address,
                                                               const std::string& training_job);
  // The same, but an address that cannot be listened at, since another program or session has it, costs the metrics
  // only: it is logged, and null is returned. Errors: INVALID_ARGUMENT [BAD_ADDRESS].
  static absl::StatusOr<std::unique_ptr<SessionMetrics>> ServeIfFree(const std::string& address,
                                                                     const std::string& training_job);
  ~SessionMetrics();

  void Update(const SessionTotals& totals);
  int port() const;
  // Returns what /metrics answers now.
  std::string Text() const;

 private:
  struct Impl;
  explicit SessionMetrics(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_SESSION_METRICS_H_

#ifndef EGERIA_WORKER_PYTHON_NATIVE_PYTHON_CACHE_H_
#define EGERIA_WORKER_PYTHON_NATIVE_PYTHON_CACHE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "worker/cache/cache_client.h"

namespace egeria::python {

// Tells one frozen prefix from every other: 128 bits over `text` (structure, modes, versions) and over the element type,
// shape and bytes of each tensor, in order.
cache::Fingerprint FingerprintOf(const std::string& text, const std::vector<at::Tensor>& tensors);

// A training process's line to its node's egeria-cache, for tensors. Used from the training thread; in a forked child
// every method does nothing. Nothing here fails but Start().
class PythonCache {
 public:
  // One sample: what crosses the cut, without the batch dimension, on the host; none for a miss.
  using Row = std::optional<std::vector<at::Tensor>>;

  // Errors: INVALID_ARGUMENT a bad address, or a job id that is no UUID.
  static absl::StatusOr<std::shared_ptr<PythonCache>> Start(const std::string& address, const std::string& job_id,
                                                            int64_t quota_bytes, size_t shared_bytes,
                                                            double patience_seconds);

  // `entry_bytes`: what EntryBytes() gives for one sample; more is a miss.
  std::vector<Row> Get(const cache::Fingerprint& prefix, const std::vector<uint64_t>& samples,
                       const std::vector<uint64_t>& input_hashes, size_t entry_bytes);
  // b x ... tensors on any device, a row for each sample, copied. Returns how many samples wait to be written.
  // Errors: INVALID_ARGUMENT the tensors have another number of rows, or a type that the wire has not.
  absl::StatusOr<int64_t> Put(const cache::Fingerprint& prefix, const std::vector<uint64_t>& samples,
                              const std::vector<uint64_t>& input_hashes, const std::vector<at::Tensor>& tensors);
  static size_t EntryBytes(const std::vector<at::Tensor>& row);

  cache::CacheClient& client() { return *client_; }

 private:
  explicit PythonCache(std::unique_ptr<cache::CacheClient> client) : client_(std::move(client)) {}

  const std::unique_ptr<cache::CacheClient> client_;
};

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_PYTHON_CACHE_H_

#ifndef EGERIA_WORKER_PYTHON_NATIVE_PYTHON_CACHE_H_
#define EGERIA_WORKER_PYTHON_NATIVE_PYTHON_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "worker/cache/batch_reader.h"
#include "worker/cache/cache_client.h"

namespace egeria::python {

// Tells one frozen prefix from every other: 128 bits over `text` (structure, modes, versions) and over the element type,
// shape and bytes of each tensor, in order.
cache::Fingerprint FingerprintOf(const std::string& text, const std::vector<at::Tensor>& tensors);

// A training process's line to its node's egeria-cache, for tensors of one frozen prefix at a time. Used from the
// training thread; in a forked child every method does nothing. Nothing here fails but Start().
class PythonCache {
 public:
  // Errors: INVALID_ARGUMENT a bad address, or a job id that is no UUID.
  static absl::StatusOr<std::shared_ptr<PythonCache>> Start(const std::string& address, const std::string& job_id,
                                                            c10::Device device, int64_t quota_bytes,
                                                            size_t shared_bytes);

  // From now on Take() and Put() are of this prefix.
  void Use(const cache::Fingerprint& prefix);
  void Expect(const std::vector<std::vector<uint64_t>>& batches) { reader_.Expect(batches); }
  // As BatchReader::Take().
  cache::CachedBatch Take(const std::vector<uint64_t>& samples, const std::vector<uint64_t>& input_hashes,
                          double patience_seconds);
  // b x ... tensors on any device, a row for each sample, copied. Returns how many samples wait to be written.
  // Errors: INVALID_ARGUMENT the tensors have another number of rows, or a type that the wire has not.
  absl::StatusOr<int64_t> Put(const std::vector<uint64_t>& samples, const std::vector<uint64_t>& input_hashes,
                              const std::vector<at::Tensor>& tensors);
  // Ends the threads, within a second. Idempotent.
  void Stop();

  cache::CacheClient& client() { return *client_; }
  cache::BatchReader& reader() { return reader_; }

 private:
  PythonCache(std::shared_ptr<cache::CacheClient> client, const cache::BatchReader::Options& options)
      : client_(std::move(client)), reader_(client_, options) {}

  const std::shared_ptr<cache::CacheClient> client_;
  cache::BatchReader reader_;
  cache::Fingerprint prefix_ = {};
};

}  // namespace egeria::python

#endif  // EGERIA_WORKER_PYTHON_NATIVE_PYTHON_CACHE_H_

#ifndef EGERIA_WORKER_CACHE_CLIENT_ACTIVATION_CACHE_H_
#define EGERIA_WORKER_CACHE_CLIENT_ACTIVATION_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/cache/client/batch_reader.h"
#include "worker/cache/client/cache_client.h"

namespace egeria::cache {

// Is a training process's line to its node's egeria-cache, for tensors of one frozen prefix at a time. Several of them
// in a process work side by side, each with a session, threads and shared memory of its own. Used from the training
// thread; in a forked child every method does nothing. Nothing here fails but Start().
class ActivationCache {
 public:
  struct Options {
    std::string address;
    std::string job_id;
    c10::Device device = c10::kCPU;
    // The fields from here on are CacheClient's.
    WantedFormat format;
    int64_t quota_bytes = 0;
    size_t shared_bytes = CacheClient::Options().shared_bytes;
    absl::Duration patience = CacheClient::Options().patience;
  };

  // Errors: INVALID_ARGUMENT a bad address, or a job id that is no UUID.
  static absl::StatusOr<std::shared_ptr<ActivationCache>> Start(const Options& options);

  // Take() and Put() are about this prefix from now on. BatchReader::Use() explains `ragged`.
  void Use(const Fingerprint& prefix, bool ragged = false);
  void Expect(const std::vector<std::vector<uint64_t>>& batches) { reader_.Expect(batches); }
  // Does what BatchReader::Take() does.
  CachedBatch Take(const std::vector<uint64_t>& samples, const std::vector<uint64_t>& input_hashes,
                   double patience_seconds);
  // b x ... tensors on any device, a row for each sample, copied. Returns how many samples wait to be written. For a
  // ragged prefix `lengths` has for each tensor how much of each row is kept in its first dimension, or nothing where
  // rows are kept whole.
  // Errors: INVALID_ARGUMENT the tensors have another number of rows, or a type that the wire has not, or are shorter
  // than `lengths`.
  absl::StatusOr<int64_t> Put(const std::vector<uint64_t>& samples, const std::vector<uint64_t>& input_hashes,
                              const std::vector<at::Tensor>& tensors,
                              const std::vector<std::vector<int64_t>>& lengths = {});
  // Does what CacheClient::Drop() does, and forgets what was read ahead of this prefix.
  void Drop(const Fingerprint& prefix);
  // Ends the threads, within a second. Idempotent.
  void Stop();

  CacheClient& client() { return *client_; }
  BatchReader& reader() { return reader_; }
  // How long one lookup may wait for the daemon.
  absl::Duration patience() const { return patience_; }

 private:
  ActivationCache(std::shared_ptr<CacheClient> client, const BatchReader::Options& options, absl::Duration patience)
      : client_(std::move(client)), reader_(client_, options), patience_(patience) {}

  const std::shared_ptr<CacheClient> client_;
  BatchReader reader_;
  const absl::Duration patience_;
  Fingerprint prefix_ = {};
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_ACTIVATION_CACHE_H_

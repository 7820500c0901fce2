#ifndef EGERIA_WORKER_CACHE_CLIENT_BATCH_READER_H_
#define EGERIA_WORKER_CACHE_CLIENT_BATCH_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/time/time.h"
#include "c10/core/Device.h"
#include "common/thread/fork_guard.h"
#include "worker/cache/client/cache_client.h"

namespace egeria::cache {

enum class SampleOutcome : uint8_t {
  kHit,
  kAbsent,
  kOtherInput,  // it is there, and was computed from another input
  kCorrupt,
  kLate,           // the cache has not answered in time, or is not there
  kShapeMismatch,  // its tensors are of another type or shape than those of the samples before it
};

// Says for each sample why it is a miss ("absent", "other_input" and so on), or "" for a hit.
std::vector<std::string> MissReasons(const std::vector<SampleOutcome>& outcomes);

struct CachedBatch {
  // The tensors are b x ..., dense and row-major, on the reader's device, and nobody else's; the rows of misses hold
  // anything. There are none where no sample was found.
  std::vector<at::Tensor> tensors;
  std::vector<SampleOutcome> outcomes;  // one for each sample
  // Where the prefix is ragged: for each tensor the length of each sample's row in its first dimension, and none where
  // rows have no dimension. Zeros follow behind it.
  std::vector<std::vector<int64_t>> lengths;
};

// Brings whole batches of one frozen prefix from the cache into tensors, ahead of the training.
//
// A thread of its own reads the batches that are expected next, the next one first, as many as fit into ahead_bytes. On
// an accelerator it copies them into pinned memory and from there to the device, on a stream of its own.
//
// Used from the training thread. In a forked child every method does nothing.
class BatchReader {
 public:
  struct Options {
    c10::Device device = c10::kCPU;
    size_t ahead_bytes = size_t{512} << 20;  // host memory for reading ahead; one batch is always read ahead
  };
  struct Counters {
    int64_t hits = 0;  // samples, as are all down to unfit
    int64_t absent = 0;
    int64_t other_input = 0;
    int64_t corrupt = 0;
    int64_t late = 0;
    int64_t unfit = 0;
    int64_t batches_ahead = 0;  // batches that were there when they were asked for
    int64_t batches_waited_for = 0;
    int64_t batches_late = 0;
    double waited_seconds = 0;
  };

  BatchReader(std::shared_ptr<CacheClient> client, const Options& options);
  ~BatchReader();

  // Reads from this prefix from now on, and forgets what was read ahead. The rows of a ragged one may differ in their
  // first dimension; each batch is as long as its longest row.
  void Use(const Fingerprint& prefix, bool ragged = false);
  // Entries of the prefix are up to so long: longer ones are not found. Nobody needs to say so once one is in the
  // cache.
  void ExpectSize(size_t entry_bytes);

  // Hints that these batches are asked for next, in this order. Batches that are not among them are forgotten.
  void Expect(const std::vector<std::vector<uint64_t>>& batches);

  // Returns the batch at hand: it was read ahead if it was expected, else it is read now. Waits no longer than
  // `patience`; samples that are not there by then are late. `input_hashes` are compared with those of the entries.
  CachedBatch Take(std::span<const uint64_t> samples, std::span<const uint64_t> input_hashes, absl::Duration patience);

  // Lets go of what was read ahead and of the memory that it took, as nothing is read for a while.
  void Rest();

  // Ends the thread; from then on everything is late. Idempotent.
  void Stop();

  Counters counters() const;

 private:
  class Impl;

  const ForkGuard<Impl> impl_;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_BATCH_READER_H_

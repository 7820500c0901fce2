#ifndef EGERIA_WORKER_CACHE_ENTRY_H_
#define EGERIA_WORKER_CACHE_ENTRY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/tensor/wire_tensor.h"
#include "worker/cache/fingerprint.h"

// What the cache keeps of one sample: what crosses the cut behind a frozen prefix, with everything that is needed to
// prove that it may be used. Made and checked in the training process; see docs/formats/cache-entry.md.
namespace egeria::cache {

// Which sample of which frozen prefix of which job.
struct EntryKey {
  JobId name;
  Fingerprint prefix = {};
  uint64_t sample = 0;
};

// One tensor of an entry: the slice of one sample, without the batch dimension.
struct EntryTensor {
  DataType dtype = DataType::kUnspecified;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;  // dense, row-major, in host memory
};

// Bytes of the entry that WriteEntry() makes of tensors with these types and shapes.
size_t EntrySize(std::span<const EntryTensor> tensors);

// Writes the entry to `out`, of EntrySize() bytes.
// `input_hash`: of all that the model was called with for this sample. Whoever reads an entry compares it with that of
// the sample at hand, so that random augmentation cannot replay another crop's activations.
void WriteEntry(const EntryKey& key, uint64_t input_hash, std::span<const EntryTensor> tensors,
                std::span<std::byte> out);

// What an entry holds. The tensors point into its bytes.
struct Entry {
  uint64_t input_hash = 0;
  std::vector<EntryTensor> tensors;
};

// Checks an entry against the key, and against its own checksum, which covers the key. False where it is not what was
// written for this key; `entry` is undefined then.
bool ReadEntry(const EntryKey& key, std::span<const std::byte> bytes, Entry* entry);

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_ENTRY_H_

#ifndef EGERIA_WORKER_CACHE_ENTRY_ENTRY_H_
#define EGERIA_WORKER_CACHE_ENTRY_ENTRY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/tensor/wire_tensor.h"
#include "worker/cache/entry/fingerprint.h"
#include "worker/cache/entry/storage_format.h"

// The cache keeps one entry for a sample: the tensors that cross the cut behind a frozen prefix, with everything that
// is needed to prove that they may be used. Entries are made and checked in the training process; see
// docs/reference/formats/cache-entry.md.
namespace egeria::cache {

// Names a sample, the frozen prefix and the job that an entry belongs to.
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

// The bytes of the tensor's values.
size_t BytesOf(const EntryTensor& tensor);

// The bytes of the entry that WriteEntry() makes of tensors with these types and shapes; other formats than the exact
// one may make it shorter.
size_t EntrySize(std::span<const EntryTensor> tensors);

// `input_hash` is the hash of everything that the model was called with for this sample. The reader of an entry
// compares it with that of the sample at hand, so that random augmentation cannot replay another crop's activations.
// `rounding` collects the differences where the format rounds; it may be null.
std::vector<std::byte> WriteEntry(const EntryKey& key, uint64_t input_hash, std::span<const EntryTensor> tensors,
                                  StorageFormat format = StorageFormat::kExact, RoundingError* rounding = nullptr);

// Limits of an entry, and of each of its tensors.
inline constexpr size_t kMaxTensors = 64;
inline constexpr size_t kMaxDimensions = 16;

// The content of an entry. The tensors point into the bytes that were read, or into `restored`, whose memory the next
// entry uses again.
struct Entry {
  uint64_t input_hash = 0;
  std::vector<EntryTensor> tensors;
  std::vector<std::byte> restored;
};

// Checks an entry against the key and against its own checksum, which covers the key, and restores its values. Returns
// false where it is not the entry that was written for this key, or where it would have more than `most_bytes` in the
// exact format; `entry` is undefined then. `intact` says whether the checksum was right.
bool ReadEntry(const EntryKey& key, std::span<const std::byte> bytes, size_t most_bytes, Entry* entry,
               bool* intact = nullptr);

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_ENTRY_ENTRY_H_

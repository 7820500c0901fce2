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

// An entry is what the cache keeps of one sample: the tensors that cross the cut behind a frozen prefix, with
// everything that is needed to prove that they may be used. Entries are made and checked in the training process; see
// docs/formats/cache-entry.md.
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

// The bytes of its values.
size_t BytesOf(const EntryTensor& tensor);

// Bytes of the entry that WriteEntry() makes of tensors with these types and shapes; fewer in formats that are shorter.
size_t EntrySize(std::span<const EntryTensor> tensors);

// `input_hash`: of all that the model was called with for this sample. Whoever reads an entry compares it with that of
// the sample at hand, so that random augmentation cannot replay another crop's activations.
// `rounding`: is told where the format rounds; may be null.
std::vector<std::byte> WriteEntry(const EntryKey& key, uint64_t input_hash, std::span<const EntryTensor> tensors,
                                  StorageFormat format = StorageFormat::kExact, RoundingError* rounding = nullptr);

// Limits of an entry, and of each of its tensors.
inline constexpr size_t kMaxTensors = 64;
inline constexpr size_t kMaxDimensions = 16;

// The content of an entry. The tensors point into the bytes that were read, or into `restored`, which is there to be
// used again for the next entry.
struct Entry {
  uint64_t input_hash = 0;
  std::vector<EntryTensor> tensors;
  std::vector<std::byte> restored;
};

// Checks an entry against the key, and against its own checksum, which covers the key, and restores its values. False
// where it is not what was written for this key, or would be of more than `most_bytes` in the exact format; `entry` is
// undefined then. `intact`: whether the checksum was right.
bool ReadEntry(const EntryKey& key, std::span<const std::byte> bytes, size_t most_bytes, Entry* entry,
               bool* intact = nullptr);

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_ENTRY_ENTRY_H_

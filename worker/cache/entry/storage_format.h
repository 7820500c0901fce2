#ifndef EGERIA_WORKER_CACHE_ENTRY_STORAGE_FORMAT_H_
#define EGERIA_WORKER_CACHE_ENTRY_STORAGE_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tensor/wire_tensor.h"
#include "worker/cache/entry/fingerprint.h"

// How the values of a tensor are kept. Pure.
namespace egeria::cache {

// The numbers are those of docs/formats/cache-entry.md.
enum class StorageFormat : uint16_t {
  kExact = 0,     // as they are
  kLz4 = 1,       // compressed without loss, bytes shuffled
  kZstd = 2,      // the same, smaller and slower
  kFloat16 = 3,   // float32 rounded; other types as they are
  kBFloat16 = 4,  // the same
};

// "exact", "lz4", "zstd", "fp16", "bf16".
// Errors: INVALID_ARGUMENT [BAD_CONFIG] any other name.
absl::StatusOr<StorageFormat> StorageFormatOf(absl::string_view name);
const char* StorageFormatName(StorageFormat format);

// Whether what comes back can differ from what was kept.
bool Rounds(StorageFormat format);

// Rounded values are kept apart, under this fingerprint, so that nobody gets them who did not ask for them. The prefix
// itself for formats that do not round.
Fingerprint StoredPrefix(const Fingerprint& prefix, StorageFormat format);

// By how much rounding has changed values: the largest and the root mean square of the differences, both over the root
// mean square of the values.
class RoundingError {
 public:
  // Values that are not finite are left out.
  void Add(std::span<const float> values, std::span<const float> rounded);
  void Add(const RoundingError& other);

  int64_t values() const { return values_; }
  double largest() const;
  double root_mean_square() const;

 private:
  int64_t values_ = 0;
  double squares_ = 0;
  double squared_differences_ = 0;
  double largest_difference_ = 0;
};

// Writes `values`, elements of `type`, to `out`, which has at least as many bytes. Returns the format that was taken,
// which is kExact where the wanted one would not be shorter, or would turn a finite value into an infinite one; and
// how many bytes it has come to.
struct Stored {
  StorageFormat format = StorageFormat::kExact;
  size_t bytes = 0;
};
Stored Store(StorageFormat wanted, DataType type, std::span<const std::byte> values, std::span<std::byte> out,
             RoundingError* error);

// The inverse. `values` has the tensor's size. False for bytes that are not such a tensor's; `values` is undefined
// then.
bool Restore(StorageFormat format, DataType type, std::span<const std::byte> stored, std::span<std::byte> values);

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_ENTRY_STORAGE_FORMAT_H_

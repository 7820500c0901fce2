#ifndef EGERIA_WORKER_CACHE_ENTRY_STORAGE_FORMAT_H_
#define EGERIA_WORKER_CACHE_ENTRY_STORAGE_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tensor/wire_tensor.h"
#include "worker/cache/entry/fingerprint.h"

// The formats in which the values of a tensor are kept. Pure.
namespace egeria::cache {

// The numbers are those of docs/reference/formats/cache-entry.md.
enum class StorageFormat : uint16_t {
  kExact = 0,     // unchanged
  kLz4 = 1,       // bytes shuffled, then compressed without loss
  kZstd = 2,      // like kLz4, but smaller and slower
  kFloat16 = 3,   // float32 rounded; other types unchanged
  kBFloat16 = 4,  // float32 rounded; other types unchanged
  kInt8 = 5,      // float32 rounded, see int8_format.h; other types unchanged
};

// How a job's entries are to be written: in this format, or where it is `automatic`, exact ones compressed where the
// quota is short and that pays (see entry_maker.h).
struct WantedFormat {
  StorageFormat format = StorageFormat::kExact;
  bool automatic = false;
};

// The names are "auto", "exact", "lz4", "zstd", "fp16", "bf16" and "int8".
// Errors: INVALID_ARGUMENT [BAD_CONFIG] any other name.
absl::StatusOr<WantedFormat> WantedFormatOf(absl::string_view name);
const char* StorageFormatName(StorageFormat format);

// Whether restored values can differ from those that were stored.
bool Rounds(StorageFormat format);

// The fingerprint under which values in this format are kept. Rounded values have one of their own, so that nobody gets
// them without asking for them. For the other formats it is the prefix itself.
Fingerprint StoredPrefix(const Fingerprint& prefix, StorageFormat format);

// The error of rounding: the largest and the root mean square of the differences, both divided by the root mean square
// of the values.
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

// The format that Store() took, and the bytes that it wrote.
struct Stored {
  StorageFormat format = StorageFormat::kExact;
  size_t bytes = 0;
};
// Writes `values`, elements of `type` in a tensor of this shape, to `out`, which has at least as many bytes. Takes
// kExact where the wanted format would not be shorter, or would turn a finite value into an infinite one.
Stored Store(StorageFormat wanted, DataType type, std::span<const int64_t> shape, std::span<const std::byte> values,
             std::span<std::byte> out, RoundingError* error);

// Does the inverse. `values` has the tensor's size. Returns false for bytes that are not such a tensor's; `values` is
// undefined then.
bool Restore(StorageFormat format, DataType type, std::span<const int64_t> shape, std::span<const std::byte> stored,
             std::span<std::byte> values);

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_ENTRY_STORAGE_FORMAT_H_

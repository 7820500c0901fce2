#ifndef EGERIA_WORKER_CACHE_ENTRY_INT8_FORMAT_H_
#define EGERIA_WORKER_CACHE_ENTRY_INT8_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// The format kInt8 of storage_format.h: float32 values as 8-bit multiples of a scale, which each channel of a sample's
// tensor has. Pure.
namespace egeria::cache {

// A channel is the whole tensor, a place in its first dimension (of c x h x w), or in its last one (of t x d),
// whichever changes the values least. A dimension counts only where each channel has at least 16 values.
//
// Writes the tensor to `out`, and what it is restored to to `rounded`, which is as long as `values`. Returns the bytes
// written; 0 where the format would not be shorter than the values, or one of them is 1e38 or more, or not a number.
size_t StoreInt8(std::span<const int64_t> shape, std::span<const float> values, std::span<std::byte> out,
                 std::vector<float>* rounded);

// Returns false for bytes that are not such a tensor's. `values` has the tensor's size.
bool RestoreInt8(std::span<const int64_t> shape, std::span<const std::byte> stored, std::span<float> values);

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_ENTRY_INT8_FORMAT_H_

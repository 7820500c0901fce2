#ifndef EGERIA_WORKER_CACHE_FINGERPRINT_H_
#define EGERIA_WORKER_CACHE_FINGERPRINT_H_

#include <array>
#include <cstdint>

namespace egeria::cache {

// Tells one frozen prefix from every other: weights, buffers, structure, modes and element types.
using Fingerprint = std::array<uint8_t, 16>;

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_FINGERPRINT_H_

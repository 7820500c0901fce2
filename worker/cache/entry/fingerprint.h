#ifndef EGERIA_WORKER_CACHE_ENTRY_FINGERPRINT_H_
#define EGERIA_WORKER_CACHE_ENTRY_FINGERPRINT_H_

#include <array>
#include <cstdint>
#include <string>

namespace egeria::cache {

// Tells one frozen prefix from every other: weights, buffers, structure, modes and element types.
using Fingerprint = std::array<uint8_t, 16>;

// The fingerprint as a string of bytes, which calls, the store's names and Python use.
inline std::string RawBytes(const Fingerprint& fingerprint) {
  return {reinterpret_cast<const char*>(fingerprint.data()), fingerprint.size()};
}

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_ENTRY_FINGERPRINT_H_

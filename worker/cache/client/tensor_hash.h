#ifndef EGERIA_WORKER_CACHE_CLIENT_TENSOR_HASH_H_
#define EGERIA_WORKER_CACHE_CLIENT_TENSOR_HASH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "worker/cache/entry/fingerprint.h"

namespace egeria::cache {

// Tells one frozen prefix from every other: 128 bits over `text` (structure, modes, versions) and over the element
// type, shape and bytes of each tensor, in order. Tensors on a device are copied to the host first.
Fingerprint FingerprintOf(const std::string& text, const std::vector<at::Tensor>& tensors);

// Returns a hash for each row of dense tensors in host memory, which have as many rows each: of the bytes in all of
// them, of the rows' shapes and element types, and of `text`.
std::vector<uint64_t> HashRows(const std::vector<at::Tensor>& tensors, const std::string& text = "");

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_TENSOR_HASH_H_

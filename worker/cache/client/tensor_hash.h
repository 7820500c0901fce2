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

// For each row of a dense tensor in host memory a hash of its bytes, and of the row's shape and element type.
std::vector<uint64_t> HashRows(const at::Tensor& rows);

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_TENSOR_HASH_H_

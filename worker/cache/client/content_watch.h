#ifndef EGERIA_WORKER_CACHE_CLIENT_CONTENT_WATCH_H_
#define EGERIA_WORKER_CACHE_CLIENT_CONTENT_WATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"

namespace egeria::cache {

// Sees what torch's version counters do not: writes through `.data` or raw memory. Each look compares a part of every
// tensor, a kLooks-th or a cache line, with what it was, and the next look another one. So a write to all of a tensor
// is seen by the next look, and any write by one of the next kLooks.
//
// Tensors that are not dense in host memory are left out.
class ContentWatch {
 public:
  static constexpr size_t kLooks = 256;

  explicit ContentWatch(const std::vector<at::Tensor>& tensors);

  // The next look.
  bool Unchanged();

 private:
  // Returns the hash of the parts that this look compares.
  uint64_t HashAt(size_t look) const;

  std::vector<at::Tensor> tensors_;
  std::vector<uint64_t> hashes_;  // one for each look
  size_t look_ = 0;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_CONTENT_WATCH_H_

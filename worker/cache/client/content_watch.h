#ifndef EGERIA_WORKER_CACHE_CLIENT_CONTENT_WATCH_H_
#define EGERIA_WORKER_CACHE_CLIENT_CONTENT_WATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"

namespace egeria::cache {

// Sees writes to tensors: those that torch's version counters count, and by contents those that they do not count,
// through `.data` or raw memory. Each look at contents compares a part of every tensor with what it was, and the next
// look another one. So a write to all of a tensor is seen by the next look, and any write by one of the next `looks`.
//
// Contents that are not dense in host memory are left out.
class ContentWatch {
 public:
  // Each look compares a part of a tensor as 1 / `looks`, at least a cache line, and everything where all tensors
  // together have no more than `whole_bytes`.
  explicit ContentWatch(const std::vector<at::Tensor>& tensors, size_t looks = 256, size_t whole_bytes = 0);

  // The next look at contents; or, with `again`, the last one once more.
  bool Unchanged(bool again = false);

  // Whether all tensors are where they were, with the same shapes and strides.
  bool InPlace() const;

  // Returns the positions of the tensors that torch has counted writes to, or that have other memory, since the
  // constructor or the last call.
  std::vector<size_t> Touched();

 private:
  // This is where a tensor was, and what its counter said.
  struct Mark {
    const void* address = nullptr;
    int64_t version = 0;
    bool operator==(const Mark&) const = default;
  };

  // This is where a tensor's elements lie.
  struct Place {
    const void* address = nullptr;
    int64_t offset = 0;
    at::DimVector shape, strides;
    bool operator==(const Place&) const = default;
  };

  static Mark MarkOf(const at::Tensor& tensor);
  static Place PlaceOf(const at::Tensor& tensor);
  // Returns the hash of the parts that this look compares.
  uint64_t HashAt(size_t look) const;

  std::vector<at::Tensor> all_;
  std::vector<Mark> marks_;    // one for each of these
  std::vector<Place> places_;  // one for each of these
  std::vector<at::Tensor> on_host_;
  std::vector<uint64_t> hashes_;  // one for each look
  size_t look_;                   // the last one
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_CONTENT_WATCH_H_

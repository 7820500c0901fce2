#include "worker/cache/client/content_watch.h"

#include <algorithm>

#include "worker/cache/entry/xxh3.h"

namespace egeria::cache {
namespace {

constexpr size_t kMinBytes = 64;  // a look sees so much of a tensor

bool IsDenseOnHost(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         !tensor.unsafeGetTensorImpl()->is_python_dispatch() && tensor.is_non_overlapping_and_dense();
}

}  // namespace

ContentWatch::ContentWatch(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (IsDenseOnHost(tensor) && tensor.nbytes() > 0) tensors_.push_back(tensor);
  }
  for (size_t look = 0; look < kLooks; ++look) hashes_.push_back(HashAt(look));
}

bool ContentWatch::Unchanged() {
  const size_t look = look_++ % kLooks;
  return HashAt(look) == hashes_[look];
}

uint64_t ContentWatch::HashAt(size_t look) const {
  uint64_t hash = 0;
  for (const at::Tensor& tensor : tensors_) {
    const size_t bytes = tensor.nbytes();
    const size_t part = std::max(kMinBytes, (bytes + kLooks - 1) / kLooks);
    const size_t parts = (bytes + part - 1) / part;
    const size_t begin = look % parts * part;
    hash = XXH3_64bits_withSeed(static_cast<const std::byte*>(tensor.const_data_ptr()) + begin,
                                std::min(part, bytes - begin), hash);
  }
  return hash;
}

}  // namespace egeria::cache

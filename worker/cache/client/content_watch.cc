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

ContentWatch::ContentWatch(const std::vector<at::Tensor>& tensors, size_t looks, size_t whole_bytes) : all_(tensors) {
  size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    marks_.push_back(MarkOf(tensor));
    places_.push_back(PlaceOf(tensor));
    if (!IsDenseOnHost(tensor) || tensor.nbytes() == 0) continue;
    on_host_.push_back(tensor);
    bytes += tensor.nbytes();
  }
  hashes_.resize(bytes <= whole_bytes ? 1 : looks);
  for (size_t look = 0; look < hashes_.size(); ++look) hashes_[look] = HashAt(look);
  look_ = hashes_.size() - 1;
}

bool ContentWatch::Unchanged(bool again) {
  if (!again) look_ = (look_ + 1) % hashes_.size();
  return HashAt(look_) == hashes_[look_];
}

bool ContentWatch::InPlace() const {
  for (size_t i = 0; i < all_.size(); ++i) {
    if (PlaceOf(all_[i]) != places_[i]) return false;
  }
  return true;
}

std::vector<size_t> ContentWatch::Touched() {
  std::vector<size_t> touched;
  for (size_t i = 0; i < all_.size(); ++i) {
    const Mark now = MarkOf(all_[i]);
    if (now == marks_[i]) continue;
    marks_[i] = now;
    touched.push_back(i);
  }
  return touched;
}

ContentWatch::Mark ContentWatch::MarkOf(const at::Tensor& tensor) {
  Mark mark;
  if (!tensor.defined()) return mark;
  if (tensor.has_storage()) mark.address = tensor.storage().data();
  if (!tensor.is_inference()) mark.version = tensor._version();
  return mark;
}

ContentWatch::Place ContentWatch::PlaceOf(const at::Tensor& tensor) {
  Place place;
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.has_storage()) return place;
  place.address = tensor.storage().data();
  place.offset = tensor.storage_offset();
  place.shape = tensor.sizes();
  place.strides = tensor.strides();
  return place;
}

uint64_t ContentWatch::HashAt(size_t look) const {
  uint64_t hash = 0;
  for (const at::Tensor& tensor : on_host_) {
    if (!IsDenseOnHost(tensor)) {  // it has been given other memory
      hash = ~hash;
      continue;
    }
    const size_t bytes = tensor.nbytes();
    const size_t part = std::max(kMinBytes, (bytes + hashes_.size() - 1) / hashes_.size());
    const size_t parts = (bytes + part - 1) / part;
    const size_t begin = look % parts * part;
    hash = XXH3_64bits_withSeed(static_cast<const std::byte*>(tensor.const_data_ptr()) + begin,
                                std::min(part, bytes - begin), hash);
  }
  return hash;
}

}  // namespace egeria::cache

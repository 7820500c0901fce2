#include "worker/cache/client/tensor_hash.h"

#include <cstring>
#include <memory>

#include "common/base/status.h"
#include "common/tensor/host_bits.h"
#include "worker/cache/entry/xxh3.h"

namespace egeria::cache {
namespace {

using State = std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)>;

State NewState() {
  State state(XXH3_createState(), XXH3_freeState);
  XXH3_128bits_reset(state.get());
  return state;
}

void AddFormat(XXH3_state_t* state, at::ScalarType type, at::IntArrayRef shape) {
  const auto number = static_cast<int32_t>(type);
  const auto dimensions = static_cast<int64_t>(shape.size());
  XXH3_128bits_update(state, &number, sizeof(number));
  XXH3_128bits_update(state, &dimensions, sizeof(dimensions));
  XXH3_128bits_update(state, shape.data(), shape.size() * sizeof(int64_t));
}

Fingerprint ToFingerprint(const XXH128_hash_t& hash) {
  Fingerprint fingerprint;
  std::memcpy(fingerprint.data(), &hash.high64, 8);
  std::memcpy(fingerprint.data() + 8, &hash.low64, 8);
  return fingerprint;
}

size_t CountRows(const std::vector<at::Tensor>& tensors) {
  return tensors.empty() ? 0 : static_cast<size_t>(tensors[0].size(0));
}

// Hashes what is the same for all rows.
uint64_t SeedOf(const std::vector<at::Tensor>& tensors, const std::string& text) {
  const State state = NewState();
  XXH3_128bits_update(state.get(), text.data(), text.size());
  for (const at::Tensor& rows : tensors) {
    EGERIA_CHECK(rows.is_cpu() && rows.is_contiguous() && rows.dim() > 0 && rows.size(0) == tensors[0].size(0));
    AddFormat(state.get(), rows.scalar_type(), rows.sizes().slice(1));
  }
  return XXH3_128bits_digest(state.get()).low64;
}

}  // namespace

Fingerprint FingerprintOf(const std::string& text, const std::vector<at::Tensor>& tensors) {
  const State state = NewState();
  const uint64_t length = text.size();
  XXH3_128bits_update(state.get(), &length, sizeof(length));
  XXH3_128bits_update(state.get(), text.data(), text.size());
  for (const at::Tensor& tensor : tensors) {
    AddFormat(state.get(), tensor.scalar_type(), tensor.sizes());
    for (const at::Tensor& part : HostBits(tensor)) {
      if (part.numel() > 0) XXH3_128bits_update(state.get(), part.const_data_ptr(), part.nbytes());
    }
  }
  return ToFingerprint(XXH3_128bits_digest(state.get()));
}

std::vector<uint64_t> HashRows(const std::vector<at::Tensor>& tensors, const std::string& text) {
  std::vector<uint64_t> hashes(CountRows(tensors), SeedOf(tensors, text));
  for (const at::Tensor& rows : tensors) {
    const size_t bytes = hashes.empty() ? 0 : rows.nbytes() / hashes.size();
    const auto* row = static_cast<const char*>(rows.const_data_ptr());
    for (uint64_t& hash : hashes) {
      hash = XXH3_64bits_withSeed(row, bytes, hash);
      row += bytes;
    }
  }
  return hashes;
}

}  // namespace egeria::cache

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
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  Fingerprint fingerprint;
  std::memcpy(fingerprint.data(), &hash.high64, 8);
  std::memcpy(fingerprint.data() + 8, &hash.low64, 8);
  return fingerprint;
}

std::vector<uint64_t> HashRows(const at::Tensor& rows) {
  EGERIA_CHECK(rows.is_cpu() && rows.is_contiguous() && rows.dim() > 0);
  const State state = NewState();
  AddFormat(state.get(), rows.scalar_type(), rows.sizes().slice(1));
  const uint64_t seed = XXH3_128bits_digest(state.get()).low64;
  std::vector<uint64_t> hashes(static_cast<size_t>(rows.size(0)));
  const size_t bytes = hashes.empty() ? 0 : rows.nbytes() / hashes.size();
  const auto* const begin = static_cast<const char*>(rows.const_data_ptr());
  for (size_t i = 0; i < hashes.size(); ++i) hashes[i] = XXH3_64bits_withSeed(begin + i * bytes, bytes, seed);
  return hashes;
}

}  // namespace egeria::cache

#include "worker/python/native/python_cache.h"

#include <cstring>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "common/base/status.h"
#include "common/rpc/address.h"
#include "common/tensor/torch_types.h"
#include "xxhash.h"

namespace egeria::python {
namespace {

// Dense, row-major and on the host.
at::Tensor OnHost(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU).contiguous(); }

std::vector<cache::EntryTensor> Describe(const std::vector<at::Tensor>& row) {
  std::vector<cache::EntryTensor> tensors;
  for (const at::Tensor& tensor : row) {
    tensors.push_back({ToDataType(tensor.scalar_type()), tensor.sizes().vec(),
                       static_cast<const std::byte*>(tensor.const_data_ptr())});
  }
  return tensors;
}

}  // namespace

cache::Fingerprint FingerprintOf(const std::string& text, const std::vector<at::Tensor>& tensors) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  XXH3_128bits_reset(state.get());
  const uint64_t length = text.size();
  XXH3_128bits_update(state.get(), &length, sizeof(length));
  XXH3_128bits_update(state.get(), text.data(), text.size());
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor host = OnHost(tensor);
    const auto type = static_cast<int32_t>(host.scalar_type());
    const int64_t dimensions = host.dim();
    XXH3_128bits_update(state.get(), &type, sizeof(type));
    XXH3_128bits_update(state.get(), &dimensions, sizeof(dimensions));
    XXH3_128bits_update(state.get(), host.sizes().data(), host.sizes().size() * sizeof(int64_t));
    if (host.numel() > 0) XXH3_128bits_update(state.get(), host.const_data_ptr(), host.nbytes());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  cache::Fingerprint fingerprint;
  std::memcpy(fingerprint.data(), &hash.high64, 8);
  std::memcpy(fingerprint.data() + 8, &hash.low64, 8);
  return fingerprint;
}

absl::StatusOr<std::shared_ptr<PythonCache>> PythonCache::Start(const std::string& address, const std::string& job_id,
                                                                c10::Device device, int64_t quota_bytes,
                                                                size_t shared_bytes) {
  cache::CacheClient::Options options;
  EGERIA_ASSIGN_OR_RETURN(options.address, rpc::ParseAddress(address));
  options.name = JobId(job_id);
  if (!options.name.IsValid()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_CONFIG", "'", job_id, "' is not a UUID in lower case");
  }
  options.quota_bytes = quota_bytes;
  options.shared_bytes = shared_bytes;
  cache::BatchReader::Options ahead;
  ahead.device = device;
  return std::shared_ptr<PythonCache>(new PythonCache(cache::CacheClient::Start(options), ahead));
}

void PythonCache::Use(const cache::Fingerprint& prefix) {
  prefix_ = prefix;
  reader_.Use(prefix);
}

cache::CachedBatch PythonCache::Take(const std::vector<uint64_t>& samples, const std::vector<uint64_t>& input_hashes,
                                     double patience_seconds) {
  return reader_.Take(samples, input_hashes, absl::Seconds(patience_seconds));
}

void PythonCache::Stop() {
  reader_.Stop();
  client_->Stop();
}

absl::StatusOr<int64_t> PythonCache::Put(const std::vector<uint64_t>& samples,
                                         const std::vector<uint64_t>& input_hashes,
                                         const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> hosts;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.dim() == 0 || static_cast<size_t>(tensor.size(0)) != samples.size() ||
        samples.size() != input_hashes.size() || ToDataType(tensor.scalar_type()) == DataType::kUnspecified) {
      return NamedError(absl::StatusCode::kInvalidArgument, "BAD_SHAPE", samples.size(), " samples, and a tensor of ",
                        tensor.dim() == 0 ? 0 : tensor.size(0), " rows of ", c10::toString(tensor.scalar_type()));
    }
    hosts.push_back(OnHost(tensor));
  }
  int64_t taken = 0;
  std::vector<at::Tensor> row(hosts.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    for (size_t t = 0; t < hosts.size(); ++t) row[t] = hosts[t].select(0, static_cast<int64_t>(i));
    if (i == 0) reader_.ExpectSize(cache::EntrySize(Describe(row)));
    taken += client_->Offer(prefix_, samples[i], input_hashes[i], Describe(row));
  }
  return taken;
}

}  // namespace egeria::python

#include "worker/python/native/python_cache.h"

#include <cstring>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "common/base/status.h"
#include "common/rpc/address.h"
#include "worker/session/wire.h"
#include "xxhash.h"

namespace egeria::python {
namespace {

// The element types that an entry may have, by torch's names for them.
std::optional<at::ScalarType> ScalarTypeOf(DataType dtype) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kByte,
                                    at::kChar, at::kBool}) {
    if (worker::ToDataType(type) == dtype) return type;
  }
  return std::nullopt;
}

// Dense, row-major and on the host.
at::Tensor OnHost(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU).contiguous(); }

std::vector<cache::EntryTensor> Describe(const std::vector<at::Tensor>& row) {
  std::vector<cache::EntryTensor> tensors;
  for (const at::Tensor& tensor : row) {
    tensors.push_back({worker::ToDataType(tensor.scalar_type()), tensor.sizes().vec(),
                       static_cast<const std::byte*>(tensor.const_data_ptr())});
  }
  return tensors;
}

std::vector<at::Tensor> ToTensors(std::span<const cache::EntryTensor> entry) {
  std::vector<at::Tensor> row;
  for (const cache::EntryTensor& found : entry) {
    const auto type = ScalarTypeOf(found.dtype);
    if (!type) return {};
    at::Tensor tensor = at::empty(found.shape, at::TensorOptions().dtype(*type));
    std::memcpy(tensor.mutable_data_ptr(), found.data, tensor.nbytes());
    row.push_back(std::move(tensor));
  }
  return row;
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
                                                                int64_t quota_bytes, size_t shared_bytes,
                                                                double patience_seconds) {
  cache::CacheClient::Options options;
  EGERIA_ASSIGN_OR_RETURN(options.address, rpc::ParseAddress(address));
  options.name = JobId(job_id);
  if (!options.name.IsValid()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_CONFIG", "'", job_id, "' is not a UUID in lower case");
  }
  options.quota_bytes = quota_bytes;
  options.shared_bytes = shared_bytes;
  options.patience = absl::Seconds(patience_seconds);
  return std::shared_ptr<PythonCache>(new PythonCache(cache::CacheClient::Start(options)));
}

std::vector<PythonCache::Row> PythonCache::Get(const cache::Fingerprint& prefix, const std::vector<uint64_t>& samples,
                                               const std::vector<uint64_t>& input_hashes, size_t entry_bytes) {
  std::vector<Row> rows(samples.size());
  if (samples.size() != input_hashes.size()) return rows;
  client_->Lookup(prefix, samples, input_hashes, entry_bytes,
                  [&](size_t position, std::span<const cache::EntryTensor> entry) {
                    std::vector<at::Tensor> row = ToTensors(entry);
                    if (row.size() == entry.size()) rows[position] = std::move(row);
                  });
  return rows;
}

absl::StatusOr<int64_t> PythonCache::Put(const cache::Fingerprint& prefix, const std::vector<uint64_t>& samples,
                                         const std::vector<uint64_t>& input_hashes,
                                         const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> hosts;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.dim() == 0 || static_cast<size_t>(tensor.size(0)) != samples.size() ||
        samples.size() != input_hashes.size() || worker::ToDataType(tensor.scalar_type()) == DataType::kUnspecified) {
      return NamedError(absl::StatusCode::kInvalidArgument, "BAD_SHAPE", samples.size(), " samples, and a tensor of ",
                        tensor.dim() == 0 ? 0 : tensor.size(0), " rows of ", c10::toString(tensor.scalar_type()));
    }
    hosts.push_back(OnHost(tensor));
  }
  int64_t taken = 0;
  std::vector<at::Tensor> row(hosts.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    for (size_t t = 0; t < hosts.size(); ++t) row[t] = hosts[t].select(0, static_cast<int64_t>(i));
    taken += client_->Offer(prefix, samples[i], input_hashes[i], Describe(row));
  }
  return taken;
}

size_t PythonCache::EntryBytes(const std::vector<at::Tensor>& row) { return cache::EntrySize(Describe(row)); }

}  // namespace egeria::python

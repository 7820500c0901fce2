#include "worker/cache/client/activation_cache.h"

#include <utility>

#include "ATen/core/grad_mode.h"
#include "common/base/status.h"
#include "common/rpc/address.h"
#include "common/tensor/torch_types.h"
#include "common/thread/thread.h"

namespace egeria::cache {
namespace {

// Returns the tensor dense, row-major and on the host.
at::Tensor OnHost(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU).contiguous(); }

std::vector<EntryTensor> Describe(const std::vector<at::Tensor>& row) {
  std::vector<EntryTensor> tensors;
  for (const at::Tensor& tensor : row) {
    tensors.push_back({ToDataType(tensor.scalar_type()), tensor.sizes().vec(),
                       static_cast<const std::byte*>(tensor.const_data_ptr())});
  }
  return tensors;
}

template <typename... Args>
absl::Status BadShape(const Args&... what) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_SHAPE", what...);
}

absl::Status CheckRows(size_t samples, const std::vector<at::Tensor>& tensors,
                       const std::vector<std::vector<int64_t>>& lengths) {
  if (tensors.size() > kMaxTensors) return BadShape(tensors.size(), " tensors of a sample, at most ", kMaxTensors);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.dim() == 0 || static_cast<size_t>(tensor.dim()) > kMaxDimensions + 1 ||
        static_cast<size_t>(tensor.size(0)) != samples || ToDataType(tensor.scalar_type()) == DataType::kUnspecified) {
      return BadShape(samples, " samples, and a tensor of ", tensor.dim() == 0 ? 0 : tensor.size(0), " rows of ",
                      c10::toString(tensor.scalar_type()));
    }
  }
  if (!lengths.empty() && lengths.size() != tensors.size()) return BadShape("lengths for each tensor, or for none");
  for (size_t t = 0; t < lengths.size(); ++t) {
    if (lengths[t].empty()) continue;
    if (lengths[t].size() != samples || tensors[t].dim() < 2) return BadShape("a length for each row of a tensor");
    for (const int64_t length : lengths[t]) {
      if (length < 0 || length > tensors[t].size(1)) {
        return BadShape("a row of ", tensors[t].size(1), " is said to have a length of ", length);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<ActivationCache>> ActivationCache::Start(const Options& options) {
  CacheClient::Options line;
  EGERIA_ASSIGN_OR_RETURN(line.address, rpc::ParseAddress(options.address));
  line.name = JobId(options.job_id);
  if (!line.name.IsValid()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_CONFIG", "'", options.job_id,
                      "' is not a UUID in lower case");
  }
  line.format = options.format;
  line.quota_bytes = options.quota_bytes;
  line.shared_bytes = options.shared_bytes;
  line.patience = options.patience;
  return std::shared_ptr<ActivationCache>(
      new ActivationCache(CacheClient::Start(line), {.device = options.device}, options.patience));
}

void ActivationCache::Use(const Fingerprint& prefix, bool ragged) {
  prefix_ = prefix;
  reader_.Use(prefix, ragged);
}

CachedBatch ActivationCache::Take(const std::vector<uint64_t>& samples, const std::vector<uint64_t>& input_hashes,
                                  double patience_seconds) {
  return reader_.Take(samples, input_hashes, absl::Seconds(patience_seconds));
}

void ActivationCache::Drop(const Fingerprint& prefix) {
  if (prefix == prefix_) reader_.Rest();
  client_->Drop(prefix);
}

void ActivationCache::Stop() {
  reader_.Stop();
  client_->Stop();
}

absl::StatusOr<int64_t> ActivationCache::Put(const std::vector<uint64_t>& samples,
                                             const std::vector<uint64_t>& input_hashes,
                                             const std::vector<at::Tensor>& tensors,
                                             const std::vector<std::vector<int64_t>>& lengths) {
  const absl::Duration begin = ThreadCpuTime();
  const at::NoGradGuard no_grad;
  EGERIA_RETURN_IF_ERROR(CheckRows(samples.size(), tensors, lengths));
  if (samples.size() != input_hashes.size()) return BadShape("as many input hashes as samples");
  std::vector<at::Tensor> hosts;
  for (const at::Tensor& tensor : tensors) hosts.push_back(OnHost(tensor));
  std::vector<CacheClient::Offered> entries;
  std::vector<at::Tensor> row(hosts.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    for (size_t t = 0; t < hosts.size(); ++t) {
      row[t] = hosts[t].select(0, static_cast<int64_t>(i));
      if (t < lengths.size() && !lengths[t].empty()) row[t] = row[t].narrow(0, 0, lengths[t][i]);
    }
    entries.push_back({samples[i], input_hashes[i], Describe(row)});
    if (i == 0 || !lengths.empty()) reader_.ExpectSize(EntrySize(entries.back().tensors));
  }
  const int64_t taken = client_->Offer(prefix_, entries);
  client_->CountOffering(ThreadCpuTime() - begin);
  return taken;
}

}  // namespace egeria::cache

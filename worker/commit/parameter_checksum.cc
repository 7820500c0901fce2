#include "worker/commit/parameter_checksum.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>

#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "common/base/status.h"
#include "common/tensor/host_bits.h"
#include "worker/commit/torch_status.h"
#include "xxhash.h"

namespace egeria::worker {

uint64_t HashTensors(const std::vector<at::Tensor>& tensors) {
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (const at::Tensor& tensor : tensors) {
    const int64_t type = static_cast<int64_t>(tensor.scalar_type());
    XXH3_64bits_update(state.get(), &type, sizeof(type));
    XXH3_64bits_update(state.get(), tensor.sizes().data(), tensor.sizes().size() * sizeof(int64_t));
    for (const at::Tensor& part : HostBits(tensor)) {
      if (part.numel() > 0) XXH3_64bits_update(state.get(), part.const_data_ptr(), part.nbytes());
    }
  }
  return XXH3_64bits_digest(state.get());
}

absl::StatusOr<bool> IdenticalOnAllRanks(uint64_t hash, const ProcessGroupPtr& group, const WaitLimits& limits) {
  if (group == nullptr) return true;
  int64_t own = 0;
  std::memcpy(&own, &hash, sizeof(own));
  constexpr const char* kWhat = "the ranks could not compare their parameters: ";
  std::vector<std::vector<at::Tensor>> outputs(1);
  c10::intrusive_ptr<c10d::Work> work;
  try {
    std::vector<at::Tensor> inputs = {at::full({1}, own, at::kLong)};
    for (int rank = 0; rank < group->getSize(); ++rank) outputs[0].push_back(at::zeros({1}, at::kLong));
    work = group->allgather(outputs, inputs);
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kUnavailable, "CHECKSUM_FAILED", kWhat, MessageOf(error));
  }
  if (const absl::Status status = WaitFor(work.get(), limits); !status.ok()) {
    if (!absl::IsUnavailable(status)) return status;
    return NamedError(absl::StatusCode::kUnavailable, "CHECKSUM_FAILED", kWhat, absl::string_view(status.message()));
  }
  return std::all_of(outputs[0].begin(), outputs[0].end(),
                     [own](const at::Tensor& theirs) { return *theirs.const_data_ptr<int64_t>() == own; });
}

}  // namespace egeria::worker

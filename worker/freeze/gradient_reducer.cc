#include "worker/freeze/gradient_reducer.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "common/base/status.h"
#include "torch/csrc/distributed/c10d/reducer.hpp"
#include "worker/commit/torch_status.h"

namespace egeria::worker {
namespace {

constexpr size_t kBroadcastBytes = size_t{64} << 20;

// Averages a bucket as the reducer would by itself, and counts its bytes.
class CountingAverage : public c10d::CppCommHookInterface<ProcessGroupPtr> {
 public:
  CountingAverage(ProcessGroupPtr group, std::atomic<int64_t>* bytes)
      : CppCommHookInterface(std::move(group)), bytes_(bytes) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    std::vector<at::Tensor> buffers = {bucket.getBufferRef()};
    buffers[0].div_(state_->getSize());
    bytes_->fetch_add(static_cast<int64_t>(buffers[0].nbytes()), std::memory_order_relaxed);
    return state_->allreduce(buffers)->getFuture();
  }

 private:
  std::atomic<int64_t>* const bytes_;
};

}  // namespace

GradientReducer::GradientReducer(ProcessGroupPtr group) : group_(std::move(group)) {}
GradientReducer::~GradientReducer() = default;

GradientReducer::Prepared::Prepared() = default;
GradientReducer::Prepared::Prepared(Prepared&&) noexcept = default;
GradientReducer::Prepared& GradientReducer::Prepared::operator=(Prepared&&) noexcept = default;
GradientReducer::Prepared::~Prepared() = default;

absl::StatusOr<GradientReducer::Prepared> GradientReducer::Prepare(const std::vector<at::Tensor>& parameters,
                                                                   const std::vector<at::Tensor>& buffers) {
  if (parameters.empty()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "NOTHING_TRAINABLE",
                      "no parameter requires a gradient: the last layer module must have trainable ones");
  }
  Prepared prepared;
  if (group_ == nullptr) return prepared;
  for (const at::Tensor& buffer : buffers) {
    if (buffer.is_floating_point()) prepared.buffers.push_back(buffer);
  }
  try {
    const std::vector<bool> sparse(parameters.size(), false);
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
        parameters, {c10d::kDefaultFirstBucketBytes, c10d::kDefaultBucketBytesCap}, sparse);
    std::reverse(buckets.begin(), buckets.end());  // gradients come from the last parameter to the first
    prepared.reducer = std::make_unique<c10d::Reducer>(
        parameters, std::move(buckets), group_, sparse, c10d::kDefaultBucketBytesCap,
        /*find_unused_parameters=*/false,
        // Views would make a rebuild 10 to 100 times as expensive and forbid zero_grad().
        /*gradient_as_bucket_view=*/false, std::unordered_map<size_t, std::string>{}, c10d::kDefaultFirstBucketBytes,
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<int64_t>{});
    prepared.reducer->register_comm_hook(std::make_unique<CountingAverage>(group_, &bytes_reduced_));
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kUnavailable, "REDUCER_FAILED", MessageOf(error));
  }
  return prepared;
}

absl::Status GradientReducer::Rebuild(const std::vector<at::Tensor>& parameters,
                                      const std::vector<at::Tensor>& buffers) {
  used_ = Prepared();
  EGERIA_ASSIGN_OR_RETURN(Prepared prepared, Prepare(parameters, buffers));
  Use(std::move(prepared));
  return absl::OkStatus();
}

void GradientReducer::BeforeForward() {
  if (used_.reducer == nullptr) return;
  used_.reducer->rebuild_buckets();
  SyncBuffers();
  used_.reducer->prepare_for_forward();
}

void GradientReducer::SyncBuffers() { BroadcastFromRankZero(group_, used_.buffers); }

void GradientReducer::BeforeBackward(const at::Tensor& loss) {
  if (used_.reducer != nullptr) used_.reducer->prepare_for_backward({loss});
}

void BroadcastFromRankZero(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors) {
  if (group == nullptr || tensors.empty()) return;
  std::vector<at::Tensor> detached;
  detached.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) detached.push_back(tensor.detach());
  c10d::broadcast_coalesced(group, detached, kBroadcastBytes, /*rank=*/0);
}

}  // namespace egeria::worker

#include "worker/session/host_copier.h"

#include <utility>

#include "ATen/DeviceAccelerator.h"
#include "ATen/ops/empty.h"
#include "c10/core/DeviceGuard.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "common/base/log.h"
#include "common/tensor/torch_types.h"
#include "worker/session/wire.h"

namespace egeria::worker {

HostCopier::HostCopier(c10::Device device) : device_(device) {
  if (at::accelerator::isAccelerator(device.type())) {
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  }
}

void HostCopier::HandOn(const std::vector<NamedTensor>& host, const Done& done) {
  std::vector<WireTensor> wire;
  wire.reserve(host.size());
  for (const NamedTensor& tensor : host) {
    absl::StatusOr<WireTensor> copy = ToWire(tensor.name, tensor.tensor);
    if (!copy.ok()) {
      LogWarning(copy.status().message());
      return;
    }
    wire.push_back(*std::move(copy));
  }
  done(std::move(wire));
}

bool HostCopier::Copy(std::vector<NamedTensor> tensors, Done done) {
  for (const NamedTensor& tensor : tensors) {
    if (!HasValues(tensor.tensor) || ToDataType(tensor.tensor.scalar_type()) == DataType::kUnspecified) return false;
  }
  if (!stream_.has_value()) {
    HandOn(tensors, done);
    return true;
  }
  if (pending_.size() >= kLargestQueue) return false;
  c10::DeviceGuard on_device(device_);
  c10::Event computed(device_.type());
  computed.record(at::accelerator::getCurrentStream(device_.index()));
  computed.block(*stream_);
  Pending pending{{}, c10::Event(device_.type()), std::move(done)};
  {
    c10::StreamGuard on_stream(*stream_);
    for (const NamedTensor& tensor : tensors) {
      const at::Tensor source = tensor.tensor.detach();
      at::Tensor host = at::empty(source.sizes(), source.options().device(at::kCPU).pinned_memory(true));
      host.copy_(source, /*non_blocking=*/true);
      if (!source.is_cpu()) source.record_stream(*stream_);
      pending.host.push_back({tensor.name, std::move(host)});
    }
  }
  pending.arrived.record(*stream_);
  pending_.push_back(std::move(pending));
  return true;
}

void HostCopier::Poll() {
  while (!pending_.empty() && pending_.front().arrived.query()) {
    const Pending arrived = std::move(pending_.front());
    pending_.pop_front();
    HandOn(arrived.host, arrived.done);
  }
}

void HostCopier::Drain() {
  while (!pending_.empty()) {
    pending_.front().arrived.synchronize();
    Poll();
  }
}

}  // namespace egeria::worker

#include "worker/cache/client/get_call.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace egeria::cache {

GetCall::GetCall(v1::Cache::Stub* stub, const v1::GetRequest& request, std::shared_ptr<SharedMemory> memory,
                 absl::Time deadline)
    : memory_(std::move(memory)),
      offset_(static_cast<size_t>(request.offset())),
      stride_(static_cast<size_t>(request.stride())),
      wanted_(static_cast<size_t>(request.samples_size())) {
  context_.set_deadline(absl::ToChronoTime(deadline));
  reader_ = stub->Get(&context_, request);
}

GetCall::~GetCall() {
  if (reader_ == nullptr) return;
  context_.TryCancel();
  reader_->Finish();
}

bool GetCall::Finish(absl::FunctionRef<void(std::span<const std::byte> entry)> arrived) {
  const bool good = memory_ != nullptr ? ReadShared(arrived) : ReadStreamed(arrived);
  if (!good) context_.TryCancel();
  const auto reader = std::move(reader_);
  return reader->Finish().ok() && good;
}

bool GetCall::ReadShared(absl::FunctionRef<void(std::span<const std::byte> entry)> arrived) {
  v1::GetResponse response;
  while (arrived_ < wanted_ && reader_->Read(&response)) {
    const size_t first = arrived_;
    arrived_ += static_cast<size_t>(response.lengths_size());
    if (arrived_ > wanted_) return false;
    for (size_t i = first; i < arrived_; ++i) {
      const size_t length = response.lengths(static_cast<int>(i - first));
      if (length > stride_) return false;
      arrived(memory_->bytes().subspan(offset_ + i * stride_, length));
    }
  }
  return arrived_ == wanted_;
}

bool GetCall::ReadStreamed(absl::FunctionRef<void(std::span<const std::byte> entry)> arrived) {
  v1::GetResponse response;
  std::vector<uint32_t> lengths;
  std::string streamed;
  while (reader_->Read(&response)) {
    lengths.insert(lengths.end(), response.lengths().begin(), response.lengths().end());
    streamed.append(response.data());
  }
  if (lengths.size() != wanted_) return false;
  std::span<const std::byte> rest = std::as_bytes(std::span(streamed));
  for (const uint32_t length : lengths) {
    if (length > rest.size()) return false;
    arrived(rest.first(length));
    rest = rest.subspan(length);
  }
  return true;
}

}  // namespace egeria::cache

#include "controller/service/upload_assembler.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/graph/graph_proto.h"

namespace egeria::controller {
namespace {

template <typename... Args>
absl::Status BadMessage(const Args&... what) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", what...);
}

template <typename... Args>
absl::Status TooLarge(const Args&... what) {
  return NamedError(absl::StatusCode::kResourceExhausted, "UPLOAD_TOO_LARGE", what...);
}

}  // namespace

void UploadAssembler::Clear() {
  if (held_ > 0) budget_->Return(std::exchange(held_, 0));
  data_.clear();
}

absl::Status UploadAssembler::CheckForm(const v1::UploadBegin& begin) const {
  if (open_ && total_known_) {
    return BadMessage("upload ", begin_.upload_id(), " has ", received_, " of ", total_,
                      " bytes, and another one begins");
  }
  if (begin.upload_id() <= last_id_) {
    return BadMessage("upload id ", begin.upload_id(), " after ", last_id_);
  }
  if (begin.content_case() == v1::UploadBegin::CONTENT_NOT_SET) return BadMessage("an upload of nothing");
  if (begin.tensors_size() > limits_.max_tensors) {
    return BadMessage("an upload of ", begin.tensors_size(), " tensors; at most ", limits_.max_tensors);
  }
  for (const v1::TensorSpec& tensor : begin.tensors()) {
    if (tensor.name().size() > limits_.max_name_length || tensor.shape_size() > limits_.max_dimensions) {
      return BadMessage("a tensor with a name of ", tensor.name().size(), " bytes and ", tensor.shape_size(),
                        " dimensions; at most ", limits_.max_name_length, " and ", limits_.max_dimensions);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<UploadAssembler::Outcome> UploadAssembler::Begin(const v1::UploadBegin& begin) {
  EGERIA_RETURN_IF_ERROR(CheckForm(begin));
  Clear();
  last_id_ = begin.upload_id();
  begin_ = begin;
  open_ = true;
  discarding_ = false;
  total_known_ = true;
  total_ = received_ = 0;
  filling_ = 0;
  specs_.clear();
  sizes_.clear();
  Outcome outcome;
  for (const v1::TensorSpec& proto : begin.tensors()) {
    auto spec = FromProto(proto);
    absl::StatusOr<size_t> size = spec.ok() ? ByteSize(*spec) : absl::StatusOr<size_t>(spec.status());
    if (!size.ok()) {
      // Nobody knows how long this upload is, so it ends where the next one begins.
      outcome.refused = spec.ok() ? NamedError(absl::StatusCode::kInvalidArgument, "BAD_SHAPE", "tensor '",
                                               proto.name(), "': ", size.status().message())
                                  : spec.status();
      total_known_ = false;
      discarding_ = true;
      return outcome;
    }
    if (*size > limits_.max_upload_bytes || total_ + *size > limits_.max_upload_bytes) {
      open_ = false;
      return TooLarge("an upload of more than ", limits_.max_upload_bytes, " bytes");
    }
    total_ += *size;
    specs_.push_back(*std::move(spec));
    sizes_.push_back(*size);
  }
  data_.resize(specs_.size());
  if (total_ == 0) return Complete();
  return outcome;
}

void UploadAssembler::Discard() {
  discarding_ = true;
  Clear();
}

absl::StatusOr<UploadAssembler::Outcome> UploadAssembler::Add(const v1::UploadChunk& chunk) {
  const std::string& bytes = chunk.data();
  if (bytes.size() > limits_.max_chunk_bytes) {
    return TooLarge("a chunk of ", bytes.size(), " bytes; at most ", limits_.max_chunk_bytes);
  }
  // An upload of no bytes may still be followed by one chunk of none.
  if (!open_ && chunk.upload_id() == last_id_ && bytes.empty()) return Outcome();
  if (!open_ || chunk.upload_id() != begin_.upload_id()) {
    return BadMessage("a chunk of upload ", chunk.upload_id(), ", which has not begun");
  }
  if (chunk.offset() < 0 || static_cast<size_t>(chunk.offset()) != received_) {
    return BadMessage("a chunk at byte ", chunk.offset(), " where ", received_, " is next");
  }
  if (total_known_ && bytes.size() > total_ - received_) {
    return BadMessage("upload ", begin_.upload_id(), " is longer than the ", total_, " bytes announced");
  }
  if (received_ + bytes.size() > limits_.max_upload_bytes) {
    return TooLarge("an upload of more than ", limits_.max_upload_bytes, " bytes");
  }
  received_ += bytes.size();
  Outcome outcome;
  if (!discarding_ && !budget_->Take(bytes.size(), held_)) {
    Discard();
    outcome.refused = NamedError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                                 "this upload would leave less room than it takes to those of other streams");
  }
  if (discarding_) {
    if (total_known_ && received_ == total_) open_ = false;
    return outcome;
  }
  held_ += bytes.size();
  for (size_t used = 0; used < bytes.size();) {
    while (data_[filling_].size() == sizes_[filling_]) ++filling_;
    std::vector<std::byte>& target = data_[filling_];
    const size_t count = std::min(bytes.size() - used, sizes_[filling_] - target.size());
    const auto* from = reinterpret_cast<const std::byte*>(bytes.data()) + used;
    target.insert(target.end(), from, from + count);
    used += count;
  }
  if (received_ == total_) return Complete();
  return outcome;
}

UploadAssembler::Outcome UploadAssembler::Complete() {
  Outcome outcome;
  Outcome::Upload& upload = outcome.complete.emplace();
  upload.begin = begin_;
  for (size_t i = 0; i < specs_.size(); ++i) {
    upload.tensors.push_back(MakeWireTensor(std::move(specs_[i]), std::move(data_[i])));
  }
  open_ = false;
  Clear();
  return outcome;
}

}  // namespace egeria::controller

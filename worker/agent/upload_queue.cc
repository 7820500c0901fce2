#include "worker/agent/upload_queue.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace egeria::worker {

namespace {

bool IsSample(const Upload& upload) { return !std::holds_alternative<Snapshot>(upload); }

}  // namespace

bool UploadQueue::Add(Upload upload) {
  return IsSample(upload) ? AddSample(std::move(upload)) : AddSnapshot(std::move(upload));
}

bool UploadQueue::AddSample(Upload sample) {
  const size_t bytes = ByteSizeOf(sample);
  if (!MakeRoom(bytes, /*another_sample=*/true)) {
    ++samples_dropped_;
    return false;
  }
  bytes_ += bytes;
  ++samples_;
  queue_.push_back(std::move(sample));
  return true;
}

bool UploadQueue::AddSnapshot(Upload upload) {
  const auto& snapshot = std::get<Snapshot>(upload);
  if (snapshot.version < newest_version_ || HoldsSnapshot(snapshot.version, snapshot.module)) return false;
  newest_version_ = snapshot.version;
  DropSnapshotsExcept(newest_version_);
  const size_t bytes = ByteSizeOf(upload);
  if (!MakeRoom(bytes, /*another_sample=*/false)) return false;
  bytes_ += bytes;
  queue_.push_back(std::move(upload));
  return true;
}

void UploadQueue::WantSnapshots(std::optional<int64_t> version) {
  newest_version_ = version.value_or(-1);
  DropSnapshotsExcept(newest_version_);
}

std::optional<Upload> UploadQueue::Take() {
  EGERIA_CHECK(!out_bytes_.has_value());
  if (queue_.empty()) return std::nullopt;
  std::optional<Upload> upload(std::move(queue_.front()));
  queue_.pop_front();
  out_bytes_ = ByteSizeOf(*upload);
  if (const auto* snapshot = std::get_if<Snapshot>(&*upload)) {
    out_snapshot_ = Snapshot{snapshot->module, snapshot->step, snapshot->version, {}};
  } else {
    --samples_;
  }
  return upload;
}

void UploadQueue::Done() {
  if (!out_bytes_.has_value()) return;
  bytes_ -= *out_bytes_;
  out_bytes_.reset();
  out_snapshot_.reset();
}

void UploadQueue::Return(Upload upload) {
  bool keep = out_bytes_.has_value();  // if it has none, the queue has been cleared meanwhile
  Done();
  const size_t bytes = ByteSizeOf(upload);
  if (IsSample(upload)) {
    keep = keep && samples_ < max_samples_ && bytes_ + bytes <= max_bytes_;
    if (keep) ++samples_;
    else ++samples_dropped_;
  } else {
    keep = keep && std::get<Snapshot>(upload).version == newest_version_;
  }
  if (!keep) return;
  bytes_ += bytes;
  queue_.push_front(std::move(upload));
}

void UploadQueue::Clear() {
  samples_dropped_ += static_cast<int64_t>(samples_);
  queue_.clear();
  samples_ = 0;
  bytes_ = 0;
  out_bytes_.reset();
  out_snapshot_.reset();
}

bool UploadQueue::HoldsSnapshot(int64_t version, ModuleIndex module) const {
  const auto matches = [&](const Snapshot& snapshot) {
    return snapshot.version == version && snapshot.module == module;
  };
  if (out_snapshot_.has_value() && matches(*out_snapshot_)) return true;
  return std::any_of(queue_.begin(), queue_.end(), [&](const Upload& queued) {
    const auto* snapshot = std::get_if<Snapshot>(&queued);
    return snapshot != nullptr && matches(*snapshot);
  });
}

void UploadQueue::DropSnapshotsExcept(int64_t version) {
  std::erase_if(queue_, [&](const Upload& queued) {
    const auto* snapshot = std::get_if<Snapshot>(&queued);
    const bool outdated = snapshot != nullptr && snapshot->version != version;
    if (outdated) bytes_ -= ByteSizeOf(queued);
    return outdated;
  });
}

bool UploadQueue::MakeRoom(size_t bytes, bool another_sample) {
  // Samples are not thrown away for an upload that will not fit all the same.
  size_t droppable = 0;
  for (const Upload& queued : queue_) droppable += IsSample(queued) ? ByteSizeOf(queued) : 0;
  if (bytes > max_bytes_ || bytes_ - droppable > max_bytes_ - bytes || max_samples_ == 0) return false;
  while (bytes_ + bytes > max_bytes_ || (another_sample && samples_ >= max_samples_)) {
    if (!DropOldestSample()) return false;
  }
  return true;
}

bool UploadQueue::DropOldestSample() {
  const auto oldest = std::find_if(queue_.begin(), queue_.end(), IsSample);
  if (oldest == queue_.end()) return false;
  bytes_ -= ByteSizeOf(*oldest);
  --samples_;
  ++samples_dropped_;
  queue_.erase(oldest);
  return true;
}

}  // namespace egeria::worker

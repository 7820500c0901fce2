#include "worker/cache/targeted_files.h"

#include <utility>

#include "absl/strings/match.h"
#include "common/base/status.h"

namespace egeria::cache {
namespace {

using rocksdb::IOStatus;

thread_local ReadTarget* current_target = nullptr;

}  // namespace

ReadTarget::ReadTarget(std::span<std::byte> memory) : memory_(memory) {
  EGERIA_CHECK(current_target == nullptr);
  current_target = this;
}

ReadTarget::~ReadTarget() { current_target = nullptr; }

// RocksDB gives up a read that fails, and nothing else: only a failed write has consequences.
class TargetedBlobFile final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  using FSRandomAccessFileOwnerWrapper::FSRandomAccessFileOwnerWrapper;

  IOStatus Read(uint64_t offset, size_t size, const rocksdb::IOOptions& options, rocksdb::Slice* result, char* scratch,
                rocksdb::IODebugContext* context) const override {
    ReadTarget* const wanted = current_target;
    if (wanted == nullptr || wanted->memory_.size() != size) {
      return FSRandomAccessFileOwnerWrapper::Read(offset, size, options, result, scratch, context);
    }
    char* const memory = reinterpret_cast<char*>(wanted->memory_.data());
    IOStatus status = FSRandomAccessFileOwnerWrapper::Read(offset, size, options, result, memory, context);
    wanted->filled_ = status.ok() && result->data() == memory && result->size() == size;
    return wanted->filled_ ? IOStatus::Aborted("it lies where it is wanted") : status;
  }
};

IOStatus TargetedFiles::NewRandomAccessFile(const std::string& name, const rocksdb::FileOptions& options,
                                            std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                            rocksdb::IODebugContext* context) {
  const IOStatus status = FileSystemWrapper::NewRandomAccessFile(name, options, file, context);
  // Of other files RocksDB would keep what it read.
  if (status.ok() && absl::EndsWith(name, ".blob")) *file = std::make_unique<TargetedBlobFile>(std::move(*file));
  return status;
}

}  // namespace egeria::cache

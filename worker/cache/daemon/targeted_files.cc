#include "worker/cache/daemon/targeted_files.h"

#include <utility>

#include "absl/strings/match.h"
#include "common/base/status.h"

namespace egeria::cache {
namespace {

using rocksdb::IOStatus;

thread_local ReadTarget* current_target = nullptr;

bool ReadAt(const rocksdb::FSRandomAccessFile& file, uint64_t offset, std::span<std::byte> memory, IOStatus* status,
            rocksdb::Slice* result, const rocksdb::IOOptions& options, rocksdb::IODebugContext* context) {
  char* const bytes = reinterpret_cast<char*>(memory.data());
  *status = file.Read(offset, memory.size(), options, result, bytes, context);
  return status->ok() && result->data() == bytes && result->size() == memory.size();
}

}  // namespace

bool BlobPlace::Read(std::span<std::byte> memory) const {
  const std::shared_ptr<rocksdb::FSRandomAccessFile> file = file_.lock();
  IOStatus status;
  rocksdb::Slice result;
  return file != nullptr && ReadAt(*file, offset_, memory, &status, &result, {}, nullptr);
}

ReadTarget::ReadTarget(std::span<std::byte> memory) : memory_(memory) {
  EGERIA_CHECK(current_target == nullptr);
  current_target = this;
}

ReadTarget::~ReadTarget() { current_target = nullptr; }

// RocksDB gives up a read that fails and goes on: only a failed write has consequences.
class TargetedBlobFile final : public rocksdb::FSRandomAccessFileWrapper {
 public:
  explicit TargetedBlobFile(std::shared_ptr<rocksdb::FSRandomAccessFile> file)
      : FSRandomAccessFileWrapper(file.get()), file_(std::move(file)) {}

  IOStatus Read(uint64_t offset, size_t size, const rocksdb::IOOptions& options, rocksdb::Slice* result, char* scratch,
                rocksdb::IODebugContext* context) const override {
    ReadTarget* const wanted = current_target;
    if (wanted == nullptr || wanted->memory_.size() != size) {
      return file_->Read(offset, size, options, result, scratch, context);
    }
    IOStatus status;
    wanted->filled_ = ReadAt(*file_, offset, wanted->memory_, &status, result, options, context);
    if (!wanted->filled_) return status;
    wanted->place_ = BlobPlace(file_, offset);
    return IOStatus::Aborted("it lies where it is wanted");
  }

 private:
  const std::shared_ptr<rocksdb::FSRandomAccessFile> file_;
};

IOStatus TargetedFiles::NewRandomAccessFile(const std::string& name, const rocksdb::FileOptions& options,
                                            std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                            rocksdb::IODebugContext* context) {
  const IOStatus status = FileSystemWrapper::NewRandomAccessFile(name, options, file, context);
  // RocksDB would keep the bytes that it reads from other files.
  if (status.ok() && absl::EndsWith(name, ".blob")) *file = std::make_unique<TargetedBlobFile>(std::move(*file));
  return status;
}

}  // namespace egeria::cache

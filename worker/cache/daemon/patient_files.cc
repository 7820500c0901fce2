#include "worker/cache/daemon/patient_files.h"

#include <chrono>
#include <thread>
#include <utility>

#include "common/base/log.h"

namespace egeria::cache {
namespace {

using rocksdb::IOStatus;

constexpr std::chrono::milliseconds kRetry{100};

class PatientFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  PatientFile(PatientFiles* files, std::unique_ptr<rocksdb::FSWritableFile> file)
      : FSWritableFileOwnerWrapper(std::move(file)), files_(files) {}

  IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                  rocksdb::IODebugContext* context) override {
    const IOStatus status = files_->Append(target(), data, size_, options, context);
    if (status.ok()) size_ += data.size();
    return status;
  }
  IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options, const rocksdb::DataVerificationInfo&,
                  rocksdb::IODebugContext* context) override {
    return Append(data, options, context);
  }

 private:
  PatientFiles* const files_;
  uint64_t size_ = 0;
};

}  // namespace

IOStatus PatientFiles::NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* file,
                                       rocksdb::IODebugContext* context) {
  const IOStatus status = FileSystemWrapper::NewWritableFile(name, options, file, context);
  if (status.ok()) *file = std::make_unique<PatientFile>(this, std::move(*file));
  return status;
}

IOStatus PatientFiles::Append(rocksdb::FSWritableFile* file, const rocksdb::Slice& data, uint64_t offset,
                              const rocksdb::IOOptions& options, rocksdb::IODebugContext* context) {
  // The write has an offset, since one that fails may have written a part.
  IOStatus status = file->PositionedAppend(data, offset, options, context);
  if (status.ok()) return status;
  ++waiting_;
  LogWarning("the cache stores nothing more until the disk takes it: ", status.ToString());
  while (!status.ok()) {
    std::this_thread::sleep_for(kRetry);
    status = file->PositionedAppend(data, offset, options, context);
  }
  --waiting_;
  LogInfo("the cache stores again");
  return status;
}

}  // namespace egeria::cache

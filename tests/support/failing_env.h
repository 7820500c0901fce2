#ifndef EGERIA_TESTS_SUPPORT_FAILING_ENV_H_
#define EGERIA_TESTS_SUPPORT_FAILING_ENV_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "rocksdb/env.h"

namespace egeria::testing {

// The machine's files, but while `failing` is true every write to a file and every new file fails as on a broken
// disk: the first half of what a write brings still reaches the file. Thread-safe.
class FailingEnv : public rocksdb::EnvWrapper {
 public:
  FailingEnv() : rocksdb::EnvWrapper(rocksdb::Env::Default()) {}

  rocksdb::Status NewWritableFile(const std::string& name, std::unique_ptr<rocksdb::WritableFile>* file,
                                  const rocksdb::EnvOptions& options) override {
    if (failing) return rocksdb::Status::IOError("the disk is broken");
    rocksdb::Status made = rocksdb::EnvWrapper::NewWritableFile(name, file, options);
    if (made.ok()) *file = std::make_unique<File>(std::move(*file), this);
    return made;
  }

  std::atomic<bool> failing{false};

 private:
  class File : public rocksdb::WritableFileWrapper {
   public:
    File(std::unique_ptr<rocksdb::WritableFile> file, const FailingEnv* env)
        : rocksdb::WritableFileWrapper(file.get()), file_(std::move(file)), env_(env) {}
    rocksdb::Status Append(const rocksdb::Slice& data) override {
      if (!env_->failing) return file_->Append(data);
      file_->Append(rocksdb::Slice(data.data(), data.size() / 2)).PermitUncheckedError();
      return rocksdb::Status::IOError("the disk is broken");
    }
    rocksdb::Status Append(const rocksdb::Slice& data, const rocksdb::DataVerificationInfo&) override {
      return Append(data);
    }

   private:
    const std::unique_ptr<rocksdb::WritableFile> file_;
    const FailingEnv* const env_;
  };
};

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_FAILING_ENV_H_

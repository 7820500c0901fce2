#ifndef EGERIA_WORKER_CACHE_DAEMON_PATIENT_FILES_H_
#define EGERIA_WORKER_CACHE_DAEMON_PATIENT_FILES_H_

#include <atomic>
#include <memory>

#include "rocksdb/file_system.h"

namespace egeria::cache {

// The operating system's files for RocksDB, with one difference: where the disk cannot take the bytes that are appended
// to a file, the thread that writes them waits until it can.
//
// RocksDB cannot do that itself. After a failed write it refuses all others until it is told to go on, and in builds
// with assertions, such as Debian's, it ends the process. A write that waits looks like a slow disk to RocksDB: it
// refuses new entries while its buffers are full, and serves those that it has. Thread-safe.
class PatientFiles final : public rocksdb::FileSystemWrapper {
 public:
  explicit PatientFiles(const std::shared_ptr<rocksdb::FileSystem>& files) : FileSystemWrapper(files) {}

  const char* Name() const override { return "PatientFiles"; }
  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* context) override;

  // Whether a write waits for the disk now.
  bool is_waiting() const { return waiting_ > 0; }

  // Appends at `offset`, however long that takes. The writing threads call it.
  rocksdb::IOStatus Append(rocksdb::FSWritableFile* file, const rocksdb::Slice& data, uint64_t offset,
                           const rocksdb::IOOptions& options, rocksdb::IODebugContext* context);

 private:
  std::atomic<int> waiting_{0};
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_PATIENT_FILES_H_

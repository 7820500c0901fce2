#ifndef EGERIA_WORKER_CACHE_DAEMON_TARGETED_FILES_H_
#define EGERIA_WORKER_CACHE_DAEMON_TARGETED_FILES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "rocksdb/file_system.h"

namespace egeria::cache {

// The place of a blob, as long as RocksDB keeps its file open. A read by place skips the lookup in RocksDB, which takes
// some microseconds. A blob stays in its place until its file goes.
class BlobPlace {
 public:
  BlobPlace() = default;  // an unknown place
  BlobPlace(const std::shared_ptr<rocksdb::FSRandomAccessFile>& file, uint64_t offset) : file_(file), offset_(offset) {}

  // Returns false where the file is not open any more, or ends before the blob does.
  bool Read(std::span<std::byte> memory) const;

 private:
  std::weak_ptr<rocksdb::FSRandomAccessFile> file_;
  uint64_t offset_ = 0;
};

// While it lives, a read of a blob file by this thread writes its bytes to `memory` if it is as long. The read then
// fails for RocksDB, which would only copy the bytes once more. So the caller of Get() first asks is_filled(), and asks
// for RocksDB's status only where that is false. Targets do not nest.
class ReadTarget {
 public:
  explicit ReadTarget(std::span<std::byte> memory);
  ~ReadTarget();
  ReadTarget(const ReadTarget&) = delete;
  ReadTarget& operator=(const ReadTarget&) = delete;

  // Whether all of the memory was filled. Values that are in RocksDB's write buffers do not fill it.
  bool is_filled() const { return filled_; }
  // The place that the memory was filled from.
  const BlobPlace& place() const { return place_; }

 private:
  friend class TargetedBlobFile;

  const std::span<std::byte> memory_;
  bool filled_ = false;
  BlobPlace place_;
};

// The files of another file system, with blob files that read into the ReadTarget of the reading thread. Thread-safe.
class TargetedFiles final : public rocksdb::FileSystemWrapper {
 public:
  explicit TargetedFiles(const std::shared_ptr<rocksdb::FileSystem>& files) : FileSystemWrapper(files) {}

  const char* Name() const override { return "TargetedFiles"; }
  rocksdb::IOStatus NewRandomAccessFile(const std::string& name, const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                        rocksdb::IODebugContext* context) override;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_TARGETED_FILES_H_

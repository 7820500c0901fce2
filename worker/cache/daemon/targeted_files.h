#ifndef EGERIA_WORKER_CACHE_DAEMON_TARGETED_FILES_H_
#define EGERIA_WORKER_CACHE_DAEMON_TARGETED_FILES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "rocksdb/file_system.h"

namespace egeria::cache {

// Where a blob lies, as long as RocksDB keeps its file open: what it is then read by costs RocksDB some microseconds
// less. A blob stays where it is until its file goes.
class BlobPlace {
 public:
  BlobPlace() = default;  // nowhere
  BlobPlace(const std::shared_ptr<rocksdb::FSRandomAccessFile>& file, uint64_t offset) : file_(file), offset_(offset) {}

  // False where the file is not open any more, or ends before that.
  bool Read(std::span<std::byte> memory) const;

 private:
  std::weak_ptr<rocksdb::FSRandomAccessFile> file_;
  uint64_t offset_ = 0;
};

// While it lives, what this thread reads from a blob file comes to lie in `memory`, if it is as long, and the read
// fails for
// RocksDB: it would copy what was read, only to have it copied from there. Whoever gets a blob asks is_filled() first,
// and for RocksDB's status where it is not. Not nested.
class ReadTarget {
 public:
  explicit ReadTarget(std::span<std::byte> memory);
  ~ReadTarget();
  ReadTarget(const ReadTarget&) = delete;
  ReadTarget& operator=(const ReadTarget&) = delete;

  // Whether all of it was read. Values that are in RocksDB's write buffers are not.
  bool is_filled() const { return filled_; }
  // Where it was read from, if so.
  const BlobPlace& place() const { return place_; }

 private:
  friend class TargetedBlobFile;

  const std::span<std::byte> memory_;
  bool filled_ = false;
  BlobPlace place_;
};

// The files of another file system, whose blob files read into the ReadTarget of the reading thread. Thread-safe.
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

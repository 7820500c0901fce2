#ifndef EGERIA_COMMON_STORAGE_ROCKSDB_LOG_H_
#define EGERIA_COMMON_STORAGE_ROCKSDB_LOG_H_

#include <cstdarg>

#include "rocksdb/env.h"

namespace egeria {

// Takes what RocksDB says of itself into this program's log, at level debug: whoever calls RocksDB reports what fails.
// Without it RocksDB writes a file of its own beside the data, and Debian's build ends the process where that file
// cannot be written, as on a full disk. Thread-safe.
class RocksdbLog final : public rocksdb::Logger {
 public:
  RocksdbLog() : Logger(rocksdb::WARN_LEVEL) {}

  using Logger::Logv;
  void Logv(const char* format, std::va_list arguments) override;
  void LogHeader(const char* format, std::va_list arguments) override {}  // options, some hundred lines
};

}  // namespace egeria

#endif  // EGERIA_COMMON_STORAGE_ROCKSDB_LOG_H_

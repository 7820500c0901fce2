#include "common/storage/rocksdb_log.h"

#include <cstdio>

#include "common/base/log.h"

namespace egeria {

void RocksdbLog::Logv(const char* format, std::va_list arguments) {
  char text[1'024];
  std::vsnprintf(text, sizeof(text), format, arguments);
  LogDebug("RocksDB: ", text);
}

}  // namespace egeria

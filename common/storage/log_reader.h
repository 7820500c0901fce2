#ifndef EGERIA_COMMON_STORAGE_LOG_READER_H_
#define EGERIA_COMMON_STORAGE_LOG_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace egeria {

// The content of a write-ahead log of RocksDB.
struct LogContents {
  std::vector<std::string> batches;  // serialised, in order
  int64_t damaged_places = 0;        // places that cannot be read, with something readable behind them
};

// Reads the bytes of a log, also behind damage: RocksDB itself passes over the rest of a block of 32 KiB then. A record
// counts where its checksum is right. The end of a log may be torn, which is no damage.
LogContents ReadLog(absl::string_view log);

}  // namespace egeria

#endif  // EGERIA_COMMON_STORAGE_LOG_READER_H_

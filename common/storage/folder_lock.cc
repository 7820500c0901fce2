#include "common/storage/folder_lock.h"

#include <string>

#include "absl/strings/match.h"

namespace egeria {

// RocksDB has no code for this. The word "lock" alone would not do: "block" and names of folders contain it too.
bool IsHeldByAnother(const rocksdb::Status& opened) {
  const std::string text = opened.ToString();
  return opened.IsIOError() &&
         (absl::StrContains(text, "While lock file") || absl::StrContains(text, "lock hold by current process"));
}

}  // namespace egeria

#include "common/storage/folder_lock.h"

#include <string>

#include "absl/strings/match.h"

namespace egeria {

// RocksDB has no code for it; "block", and names of folders, have the word in them, too.
bool IsHeldByAnother(const rocksdb::Status& opened) {
  const std::string text = opened.ToString();
  return opened.IsIOError() &&
         (absl::StrContains(text, "While lock file") || absl::StrContains(text, "lock hold by current process"));
}

}  // namespace egeria

#include "common/storage/folder_lock.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/match.h"

namespace egeria {

// RocksDB has no code for this. The word "lock" alone would not do: "block" and names of folders contain it too.
bool IsHeldByAnother(const rocksdb::Status& opened) {
  const std::string text = opened.ToString();
  return opened.IsIOError() &&
         (absl::StrContains(text, "While lock file") || absl::StrContains(text, "lock hold by current process"));
}

bool HasLostItsBeginning(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(folder + "/CURRENT", error)) return false;
  const fs::directory_iterator files(folder, error);
  return std::any_of(begin(files), end(files), [](const fs::directory_entry& file) {
    return file.path().extension() == ".sst" || absl::StartsWith(file.path().filename().string(), "MANIFEST-");
  });
}

}  // namespace egeria

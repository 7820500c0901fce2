#include "launcher/temp_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace egeria::run {
namespace {

constexpr char kPrefix[] = "egeria-run-";
constexpr char kLock[] = "/lock";

void RemoveAbandoned(const std::string& base) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(base, error)) {
    const std::string path = entry.path().string();
    struct stat status;
    if (!absl::StartsWith(entry.path().filename().string(), kPrefix) || lstat(path.c_str(), &status) != 0 ||
        !S_ISDIR(status.st_mode) || status.st_uid != geteuid()) {
      continue;
    }
    const auto lock = FileLock::Try(path + kLock, FileLock::Kind::kExclusive, FileLock::Missing::kFail);
    std::error_code ignored;
    if (lock.ok()) std::filesystem::remove_all(path, ignored);
  }
}

}  // namespace

absl::StatusOr<TempFolder> TempFolder::Make() {
  constexpr size_t kMaxPath = 80;  // a socket's path may have 107 bytes; the rest is for its file name
  std::string reasons;
  for (const char* base :
       std::initializer_list<const char*>{std::getenv("TMPDIR"), std::getenv("XDG_RUNTIME_DIR"), "/tmp"}) {
    if (base == nullptr || base[0] != '/') continue;
    std::string path = absl::StrCat(base, "/", kPrefix, "XXXXXX");
    if (path.size() <= kMaxPath && mkdtemp(path.data()) != nullptr) {
      return Take(std::move(path));
    }
    absl::StrAppend(&reasons, " ", base, " (", path.size() > kMaxPath ? "too long" : std::strerror(errno), ")");
  }
  return absl::UnavailableError(absl::StrCat("no temporary folder can be made in", reasons));
}

absl::StatusOr<TempFolder> TempFolder::Take(std::string path) {
  if (!std::filesystem::is_directory(path)) return absl::UnavailableError(absl::StrCat(path, " is no folder"));
  RemoveAbandoned(std::filesystem::path(path).parent_path().string());
  auto lock = FileLock::Try(path + kLock, FileLock::Kind::kExclusive);
  return TempFolder(std::move(path), std::move(lock));
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace egeria::run

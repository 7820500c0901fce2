#include "deploy/run/temp_folder.h"

#include <fcntl.h>
#include <sys/file.h>
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

// The locked lock file of `folder`, or -1 if somebody else holds it or, without `create`, there is none.
int Lock(const std::string& folder, bool create) {
  const int file = open((folder + kLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0), 0600);
  if (file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  if (file >= 0) close(file);
  return -1;
}

void RemoveAbandoned(const std::string& base) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(base, error)) {
    const std::string path = entry.path().string();
    struct stat status;
    if (!absl::StartsWith(entry.path().filename().string(), kPrefix) || lstat(path.c_str(), &status) != 0 ||
        !S_ISDIR(status.st_mode) || status.st_uid != geteuid()) {
      continue;
    }
    const int lock = Lock(path, /*create=*/false);
    if (lock < 0) continue;
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
    close(lock);
  }
}

}  // namespace

absl::StatusOr<TempFolder> TempFolder::Make() {
  constexpr size_t kMaxPath = 80;  // of the 107 bytes of a socket's path
  std::string reasons;
  for (const char* base :
       std::initializer_list<const char*>{std::getenv("TMPDIR"), std::getenv("XDG_RUNTIME_DIR"), "/tmp"}) {
    if (base == nullptr || base[0] != '/') continue;
    std::string path = absl::StrCat(base, "/", kPrefix, "XXXXXX");
    if (path.size() <= kMaxPath && mkdtemp(path.data()) != nullptr) {
      RemoveAbandoned(base);
      const int lock = Lock(path, /*create=*/true);
      return TempFolder(std::move(path), lock);
    }
    absl::StrAppend(&reasons, " ", base, " (", path.size() > kMaxPath ? "too long" : std::strerror(errno), ")");
  }
  return absl::UnavailableError(absl::StrCat("no temporary folder can be made in", reasons));
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  if (lock_ >= 0) close(lock_);
}

}  // namespace egeria::run

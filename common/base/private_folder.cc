#include "common/base/private_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "common/base/log.h"
#include "common/base/status.h"

namespace egeria {
namespace {

bool IsOurs(uid_t owner) { return owner == geteuid() || owner == 0; }

}  // namespace

absl::Status CheckPrivate(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  if (!IsOurs(info.st_uid)) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "UNSAFE_FOLDER", path, " belongs to user ", info.st_uid,
                      ", who could change its files: use another folder");
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "UNSAFE_FOLDER", "others can write to ", path,
                      ": take the permission away (chmod go-w), or use another one");
  }
  if ((info.st_mode & (S_IRGRP | S_IROTH | S_IXGRP | S_IXOTH)) != 0) {
    LogWarning("others can read the files in ", path, "; chmod go= takes that permission away");
  }
  return absl::OkStatus();
}

absl::Status MakePrivateFolder(const std::string& path) {
  std::error_code error;
  const std::filesystem::path above = std::filesystem::path(path).parent_path();
  if (!above.empty()) std::filesystem::create_directories(above, error);
  if (mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  if (errno != EEXIST) return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  if (!std::filesystem::is_directory(path, error)) return absl::UnavailableError(path + " is no folder");
  return CheckPrivate(path);
}

bool OthersCanWriteTo(const std::string& folder) {
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) return false;
  return !IsOurs(info.st_uid) || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

}  // namespace egeria

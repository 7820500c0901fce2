#include "common/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace egeria {

absl::StatusOr<FileLock> FileLock::Try(const std::string& path, Kind kind, Missing missing) {
  const int create = missing == Missing::kMake ? O_CREAT : 0;
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | create, 0600);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, path);
  FileLock lock(descriptor);
  if (flock(descriptor, (kind == Kind::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) return lock;
  return absl::ErrnoToStatus(errno, path);
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

bool FileLock::BecomeExclusive() { return flock(descriptor_, LOCK_EX | LOCK_NB) == 0; }

}  // namespace egeria

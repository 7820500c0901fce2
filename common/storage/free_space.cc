#include "common/storage/free_space.h"

#include <sys/statvfs.h>

#include <limits>

namespace egeria {

int64_t FreeBytes(const std::string& folder) {
  struct statvfs disk;
  if (statvfs(folder.c_str(), &disk) != 0) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

}  // namespace egeria

#ifndef EGERIA_COMMON_BASE_FILE_LOCK_H_
#define EGERIA_COMMON_BASE_FILE_LOCK_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace egeria {

// A lock on a file (flock), held until this object or the process ends, however it ends; not by programs that the
// process executes. Thread-compatible.
class FileLock {
 public:
  enum class Kind { kShared, kExclusive };
  enum class Missing { kMake, kFail };

  // Takes the lock without waiting. Errors: UNAVAILABLE somebody holds it in a way that excludes this one; any other
  // code is that of errno, where the file cannot be opened.
  static absl::StatusOr<FileLock> Try(const std::string& path, Kind kind, Missing missing = Missing::kMake);
  FileLock(FileLock&& other) : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

  // True if nobody else holds a shared lock. The lock is exclusive then; else it may be lost.
  bool BecomeExclusive();

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace egeria

#endif  // EGERIA_COMMON_BASE_FILE_LOCK_H_

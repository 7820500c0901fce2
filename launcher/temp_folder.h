#ifndef EGERIA_LAUNCHER_TEMP_FOLDER_H_
#define EGERIA_LAUNCHER_TEMP_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/file_lock.h"

namespace egeria::run {

// A new folder that only this user can enter, removed with all that is in it at the end. Its path leaves room
// for a Unix socket's name. While it is in use a file in it is locked; folders whose owner was killed, and so
// left them behind unlocked, are removed by the next Make(). Thread-compatible.
class TempFolder {
 public:
  // Makes it below $TMPDIR, or below $XDG_RUNTIME_DIR or /tmp where that does not work or is too long.
  // Errors: UNAVAILABLE.
  static absl::StatusOr<TempFolder> Make();
  // Takes over a folder that another process has made so. Errors: UNAVAILABLE there is none.
  static absl::StatusOr<TempFolder> Take(std::string path);
  TempFolder(TempFolder&& other) : path_(std::exchange(other.path_, "")), lock_(std::move(other.lock_)) {}
  TempFolder& operator=(TempFolder&&) = delete;
  ~TempFolder();

  const std::string& path() const { return path_; }

 private:
  TempFolder(std::string path, absl::StatusOr<FileLock> lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  absl::StatusOr<FileLock> lock_;
};

}  // namespace egeria::run

#endif  // EGERIA_LAUNCHER_TEMP_FOLDER_H_

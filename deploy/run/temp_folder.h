#ifndef EGERIA_DEPLOY_RUN_TEMP_FOLDER_H_
#define EGERIA_DEPLOY_RUN_TEMP_FOLDER_H_

#include <string>

#include "absl/status/statusor.h"

namespace egeria::run {

// A new folder that only this user can enter, removed with all that is in it at the end. Its path leaves room
// for a Unix socket's name. Thread-compatible.
class TempFolder {
 public:
  // Below $TMPDIR, or below $XDG_RUNTIME_DIR or /tmp where that does not work or is too long.
  // Errors: UNAVAILABLE.
  static absl::StatusOr<TempFolder> Make();
  TempFolder(TempFolder&& other) : path_(std::move(other.path_)) { other.path_.clear(); }
  TempFolder& operator=(TempFolder&&) = delete;
  ~TempFolder();

  const std::string& path() const { return path_; }

 private:
  explicit TempFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace egeria::run

#endif  // EGERIA_DEPLOY_RUN_TEMP_FOLDER_H_

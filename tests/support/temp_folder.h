#ifndef EGERIA_TESTS_SUPPORT_TEMP_FOLDER_H_
#define EGERIA_TESTS_SUPPORT_TEMP_FOLDER_H_

#include <cstdlib>
#include <filesystem>
#include <string>

#include "common/base/status.h"

namespace egeria::testing {

// A new folder under the system's one for temporary files, removed with everything in it at the end. Its path
// is short enough for a Unix socket: it lies in /tmp where the other one's would not be. Thread-compatible.
class TempFolder {
 public:
  TempFolder() {
    constexpr size_t kMaxPath = 56;  // egeria-run makes folders in it, whose paths have 80 bytes at most
    std::string path = (std::filesystem::temp_directory_path() / "egeria-test-XXXXXX").string();
    if (path.size() > kMaxPath) path = "/tmp/egeria-test-XXXXXX";
    EGERIA_CHECK(mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_TEMP_FOLDER_H_

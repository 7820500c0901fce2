#ifndef EGERIA_TESTS_SUPPORT_SMALL_DISK_H_
#define EGERIA_TESTS_SUPPORT_SMALL_DISK_H_

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace egeria::testing {

// A file system of 24 MiB over a folder, which this process and its children alone see. Thread-compatible.
class SmallDisk {
 public:
  // Returns an empty text, or why it cannot be had.
  std::string Mount(const std::filesystem::path& folder) {
    const uid_t user = geteuid();
    if (unshare(CLONE_NEWNS) != 0) {
      if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return std::strerror(errno);
      std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
    }
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return std::strerror(errno);
    if (mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=24m,mode=0700") != 0) return std::strerror(errno);
    folder_ = folder;
    return "";
  }
  ~SmallDisk() {
    if (!folder_.empty()) umount2(folder_.c_str(), MNT_DETACH);
  }

  // Takes all that is free.
  void Fill() const {
    const int file = open((folder_ / "filler").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    const std::vector<char> bytes(4'096, 'x');
    while (write(file, bytes.data(), bytes.size()) > 0) {
    }
    close(file);
  }
  void Free() const { std::filesystem::remove(folder_ / "filler"); }

 private:
  std::filesystem::path folder_;
};

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_SMALL_DISK_H_

#include "worker/cache/entry/shared_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/ids.h"
#include "common/base/status.h"

namespace egeria::cache {
namespace {

// A name is this prefix, the process that made the segment and a random part.
constexpr char kPrefix[] = "/egeria-cache-";
constexpr char kFolder[] = "/dev/shm";
// A younger segment may belong to a process in another container, whose process ids mean nothing here.
constexpr std::time_t kYoung = 60;

absl::Status Failed(absl::StatusCode code, const std::string& what, int error) {
  return NamedError(code, "NO_SHARED_MEMORY", what, error == 0 ? "" : ": ", error == 0 ? "" : std::strerror(error));
}

absl::StatusOr<std::span<std::byte>> Map(int descriptor, size_t bytes) {
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) return Failed(absl::StatusCode::kUnavailable, "it cannot be mapped", errno);
  return std::span<std::byte>(static_cast<std::byte*>(address), bytes);
}

// The process that made the segment of this name; 0 if it is not a name of egeria's.
pid_t MakerOf(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, kPrefix)) return 0;
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(name, absl::MaxSplits('-', 1));
  pid_t maker = 0;
  return absl::SimpleAtoi(parts.first, &maker) && JobId(std::string(parts.second)).IsValid() ? maker : 0;
}

// Removes the segments of processes that were killed before the daemon had mapped them.
void RemoveOrphans() {
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(kFolder, ignored)) {
    const std::string name = absl::StrCat("/", file.path().filename().native());
    const pid_t maker = MakerOf(name);
    if (maker <= 0 || kill(maker, 0) == 0 || errno != ESRCH) continue;
    struct stat info;
    const bool old = stat(file.path().c_str(), &info) == 0 && std::time(nullptr) - info.st_mtime > kYoung;
    if (old && info.st_uid == geteuid()) shm_unlink(name.c_str());
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(size_t bytes) {
  RemoveOrphans();
  const std::string name = absl::StrCat(kPrefix, getpid(), "-", JobId::Random().text());
  const int descriptor = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) return Failed(absl::StatusCode::kUnavailable, "it cannot be made", errno);
  // The pages are reserved now: a page that cannot be had later would end the process.
  const int error = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  absl::StatusOr<std::span<std::byte>> mapped =
      error == 0 ? Map(descriptor, bytes)
                 : Failed(error == ENOSPC ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
                          absl::StrCat(bytes, " bytes cannot be had"), error);
  close(descriptor);
  if (!mapped.ok()) {
    shm_unlink(name.c_str());
    return mapped.status();
  }
  return std::unique_ptr<SharedMemory>(new SharedMemory(name, *mapped, /*linked=*/true));
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Open(const std::string& name, size_t bytes) {
  if (MakerOf(name) <= 0 || bytes == 0) {
    return Failed(absl::StatusCode::kInvalidArgument, absl::StrCat("'", name, "' is no name of ours"), 0);
  }
  const int descriptor = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (descriptor < 0) return Failed(absl::StatusCode::kUnavailable, "it cannot be opened", errno);
  struct stat info;
  absl::StatusOr<std::span<std::byte>> mapped = Failed(absl::StatusCode::kInvalidArgument, "it is too small", 0);
  if (fstat(descriptor, &info) == 0 && static_cast<size_t>(info.st_size) >= bytes) mapped = Map(descriptor, bytes);
  close(descriptor);
  if (!mapped.ok()) return mapped.status();
  return std::unique_ptr<SharedMemory>(new SharedMemory(name, *mapped, /*linked=*/false));
}

SharedMemory::~SharedMemory() {
  Unlink();
  munmap(bytes_.data(), bytes_.size());
}

void SharedMemory::Unlink() {
  if (linked_) shm_unlink(name_.c_str());
  linked_ = false;
}

}  // namespace egeria::cache

#include "worker/cache/entry/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace egeria::cache {
namespace {

// A page that has gone would end the process that touches it.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status Failed(absl::StatusCode code, const std::string& what, int error = 0) {
  return NamedError(code, "NO_SHARED_MEMORY", what, error == 0 ? "" : ": ", error == 0 ? "" : std::strerror(error));
}

absl::StatusOr<std::span<std::byte>> Map(int descriptor, size_t bytes) {
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) return Failed(absl::StatusCode::kUnavailable, "it cannot be mapped", errno);
  return std::span<std::byte>(static_cast<std::byte*>(address), bytes);
}

// The machine can give so much without taking it from a program.
size_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  size_t kilobytes = 0;
  for (std::string unit; file >> key >> kilobytes;) {
    if (key == "MemAvailable:") return kilobytes << 10;
    std::getline(file, unit);
  }
  return std::numeric_limits<size_t>::max();
}

absl::Status Prepare(int descriptor, size_t bytes) {
  // The pages are reserved now: a page that cannot be had later would end the process, too.
  const int error = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  if (error != 0) return Failed(absl::StatusCode::kUnavailable, absl::StrCat(bytes, " bytes cannot be had"), error);
  if (fcntl(descriptor, F_ADD_SEALS, kSeals) == 0) return absl::OkStatus();
  return Failed(absl::StatusCode::kUnavailable, "it cannot be sealed", errno);
}

absl::Status CheckForeign(int descriptor, size_t bytes) {
  struct stat info;
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Failed(absl::StatusCode::kInvalidArgument, "it is no memory whose size is sealed");
  }
  if (fstat(descriptor, &info) == 0 && info.st_uid == geteuid() && static_cast<size_t>(info.st_size) >= bytes) {
    return absl::OkStatus();
  }
  return Failed(absl::StatusCode::kInvalidArgument, "it is too small, or another user's");
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(size_t bytes) {
  if (bytes == 0 || bytes > kMostBytes || bytes > AvailableBytes() / 2) {
    return Failed(absl::StatusCode::kResourceExhausted, absl::StrCat(bytes, " bytes cannot be had"));
  }
  const int descriptor = memfd_create("egeria-cache", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return Failed(absl::StatusCode::kUnavailable, "it cannot be made", errno);
  const absl::Status prepared = Prepare(descriptor, bytes);
  const absl::StatusOr<std::span<std::byte>> mapped = prepared.ok() ? Map(descriptor, bytes) : prepared;
  if (mapped.ok()) return std::unique_ptr<SharedMemory>(new SharedMemory(descriptor, *mapped));
  close(descriptor);
  return mapped.status();
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Open(pid_t owner, int descriptor, size_t bytes) {
  if (bytes == 0 || bytes > kMostBytes) {
    return Failed(absl::StatusCode::kInvalidArgument, absl::StrCat(bytes, " bytes are not shared"));
  }
  // Opening something else than a file could wait, or do something.
  const std::string path = absl::StrCat("/proc/", owner, "/fd/", descriptor);
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return Failed(absl::StatusCode::kUnavailable, "it cannot be seen", errno);
  if (!S_ISREG(info.st_mode)) return Failed(absl::StatusCode::kInvalidArgument, "it is no memory");
  const int own = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (own < 0) return Failed(absl::StatusCode::kUnavailable, "it cannot be opened", errno);
  const absl::Status foreign = CheckForeign(own, bytes);
  const absl::StatusOr<std::span<std::byte>> mapped = foreign.ok() ? Map(own, bytes) : foreign;
  if (mapped.ok()) return std::unique_ptr<SharedMemory>(new SharedMemory(own, *mapped));
  close(own);
  return mapped.status();
}

SharedMemory::~SharedMemory() {
  munmap(bytes_.data(), bytes_.size());
  close(descriptor_);
}

}  // namespace egeria::cache

#include "controller/reference/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "common/base/status.h"

namespace egeria::reference {
namespace {

constexpr uint64_t kPage = 4096;
// Pages in this much of the front stay when they are freed.
constexpr uint64_t kKeptBytes = uint64_t{64} << 20;

uint64_t RoundUp(size_t bytes) { return (static_cast<uint64_t>(bytes) + kPage - 1) / kPage * kPage; }

absl::Status SystemError(const char* what) {
  return absl::InternalError(absl::StrCat("the memory of the reference engine: ", what, ": ", std::strerror(errno)));
}

}  // namespace

SharedMemory::SharedMemory(int fd, int read_only_fd, std::byte* start, size_t bytes)
    : fd_(fd), read_only_fd_(read_only_fd), start_(start), size_(bytes) {
  gaps_.emplace(0, bytes);
}

SharedMemory::~SharedMemory() {
  munmap(start_, size_);
  close(read_only_fd_);
  close(fd_);
}

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Create(size_t bytes) {
  const size_t size = RoundUp(std::max<size_t>(bytes, kPage));
  const int fd = memfd_create("egeria-reference", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return SystemError("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(size)) != 0) {
    close(fd);
    return SystemError("ftruncate");
  }
  void* start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (start == MAP_FAILED) {
    close(fd);
    return SystemError("mmap");
  }
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  const int read_only_fd = open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC);
  if (read_only_fd < 0) {
    munmap(start, size);
    close(fd);
    return SystemError("open");
  }
  return std::shared_ptr<SharedMemory>(new SharedMemory(fd, read_only_fd, static_cast<std::byte*>(start), size));
}

absl::StatusOr<WireTensor> SharedMemory::Copy(const WireTensor& tensor, End end) {
  if (tensor.size() == 0) return WireTensor{tensor.spec, {start_, 0}, nullptr};
  const uint64_t bytes = RoundUp(tensor.size());
  uint64_t offset = 0;
  {
    const MutexLock lock(&mutex_);
    const auto fits = [&](const auto& gap) { return gap.second >= bytes; };
    auto gap = std::find_if(gaps_.begin(), gaps_.end(), fits);
    if (end == End::kBack) {
      const auto last = std::find_if(gaps_.rbegin(), gaps_.rend(), fits);
      gap = last == gaps_.rend() ? gaps_.end() : std::prev(last.base());
    }
    if (gap == gaps_.end()) {
      return NamedError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "no place for a tensor of ", tensor.size(),
                        " bytes");
    }
    const uint64_t left = gap->second - bytes;
    if (end == End::kFront) {
      offset = gap->first;
      gaps_.erase(gap);
      if (left > 0) gaps_.emplace(offset + bytes, left);
    } else {
      offset = gap->first + left;
      gap->second = left;
      if (left == 0) gaps_.erase(gap);
    }
  }
  std::memcpy(start_ + offset, tensor.data(), tensor.size());
  std::shared_ptr<const void> owner(
      start_ + offset, [self = shared_from_this(), offset, bytes](const void*) { self->Free(offset, bytes); });
  return WireTensor{tensor.spec, {start_ + offset, tensor.size()}, std::move(owner)};
}

void SharedMemory::Free(uint64_t offset, uint64_t bytes) {
  if (offset + bytes > kKeptBytes) {
    madvise(start_ + offset, bytes, MADV_REMOVE);  // takes the pages from the file, too
  }
  const MutexLock lock(&mutex_);
  auto gap = gaps_.emplace(offset, bytes).first;
  if (const auto next = std::next(gap); next != gaps_.end() && gap->first + gap->second == next->first) {
    gap->second += next->second;
    gaps_.erase(next);
  }
  if (gap == gaps_.begin()) return;
  const auto before = std::prev(gap);
  if (before->first + before->second != gap->first) return;
  before->second += gap->second;
  gaps_.erase(gap);
}

}  // namespace egeria::reference

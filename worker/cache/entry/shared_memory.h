#ifndef EGERIA_WORKER_CACHE_ENTRY_SHARED_MEMORY_H_
#define EGERIA_WORKER_CACHE_ENTRY_SHARED_MEMORY_H_

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"

namespace egeria::cache {

// Memory without a name (memfd_create). A training process and the daemon give each other entries through it. The
// process makes it, and seals its size, so that no page of it can go while the daemon uses it. It goes with the last of
// the two.
class SharedMemory {
 public:
  // No more than this is shared with one process.
  static constexpr size_t kMostBytes = size_t{1} << 30;

  // Reserves all its pages. Errors: RESOURCE_EXHAUSTED [NO_SHARED_MEMORY] more than kMostBytes, or than half of what
  // the machine has left; UNAVAILABLE [NO_SHARED_MEMORY] any other reason.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(size_t bytes);
  // Maps what `owner`, a process of this user, has made, and has under this number. Errors: INVALID_ARGUMENT
  // [NO_SHARED_MEMORY] it is no memory of a sealed size, has fewer bytes, or there are more than kMostBytes;
  // UNAVAILABLE [NO_SHARED_MEMORY] it cannot be opened or mapped.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Open(pid_t owner, int descriptor, size_t bytes);
  ~SharedMemory();

  // Open() needs it. It is this process's number.
  int descriptor() const { return descriptor_; }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  SharedMemory(int descriptor, std::span<std::byte> bytes) : descriptor_(descriptor), bytes_(bytes) {}

  const int descriptor_;
  const std::span<std::byte> bytes_;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_ENTRY_SHARED_MEMORY_H_

#ifndef EGERIA_WORKER_CACHE_ENTRY_SHARED_MEMORY_H_
#define EGERIA_WORKER_CACHE_ENTRY_SHARED_MEMORY_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace egeria::cache {

// A segment of POSIX shared memory. A training process and the daemon give each other entries through it. The process
// makes the segment and removes its name once the daemon has mapped it, so that it goes with the last of the two.
class SharedMemory {
 public:
  // Makes a new segment under a name of its own, with all its pages reserved. Removes segments that killed processes
  // have left.
  // Errors: RESOURCE_EXHAUSTED [NO_SHARED_MEMORY] there is less memory (a container often has 64 MiB in all);
  // UNAVAILABLE [NO_SHARED_MEMORY] any other reason.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(size_t bytes);
  // Maps another process's segment.
  // Errors: INVALID_ARGUMENT [NO_SHARED_MEMORY] the name is none of Create()'s, or the segment is smaller than `bytes`;
  // UNAVAILABLE [NO_SHARED_MEMORY] it cannot be opened or mapped.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Open(const std::string& name, size_t bytes);
  ~SharedMemory();

  // Removes the name; the memory stays while it is mapped. Idempotent; the destructor of a created segment calls it.
  void Unlink();

  const std::string& name() const { return name_; }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  SharedMemory(std::string name, std::span<std::byte> bytes, bool linked)
      : name_(std::move(name)), bytes_(bytes), linked_(linked) {}

  const std::string name_;
  const std::span<std::byte> bytes_;
  bool linked_;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_ENTRY_SHARED_MEMORY_H_

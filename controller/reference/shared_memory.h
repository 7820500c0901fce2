#ifndef EGERIA_CONTROLLER_REFERENCE_SHARED_MEMORY_H_
#define EGERIA_CONTROLLER_REFERENCE_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "common/tensor/wire_tensor.h"
#include "common/thread/mutex.h"

namespace egeria::reference {

// Memory that this process writes, and that a process which gets read_only_fd() may only read: the kernel gives it no
// writable mapping of that. Tensors are copied in, and their place is free again when the last copy of the WireTensor
// goes. Memory is taken only where there are bytes. Thread-safe.
class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  // `bytes`: the most that it may hold, with what is lost between tensors. Errors: INTERNAL what the kernel says.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Create(size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Tensors that come and go all the time lie at the front, where pages are kept for the next ones; tensors that stay
  // for long lie at the back.
  enum class End { kFront, kBack };

  // The same tensor, in this memory. Errors: RESOURCE_EXHAUSTED [QUEUE_FULL] no gap is large enough.
  absl::StatusOr<WireTensor> Copy(const WireTensor& tensor, End end);

  // Where the bytes of a tensor lie that Copy() has returned.
  uint64_t OffsetOf(const WireTensor& tensor) const { return static_cast<uint64_t>(tensor.data() - start_); }
  int read_only_fd() const { return read_only_fd_; }

 private:
  SharedMemory(int fd, int read_only_fd, std::byte* start, size_t bytes);
  void Free(uint64_t offset, uint64_t bytes);

  const int fd_, read_only_fd_;
  std::byte* const start_;
  const size_t size_;

  Mutex mutex_;
  std::map<uint64_t, uint64_t> gaps_ ABSL_GUARDED_BY(mutex_);  // offset and bytes of what is free
};

}  // namespace egeria::reference

#endif  // EGERIA_CONTROLLER_REFERENCE_SHARED_MEMORY_H_

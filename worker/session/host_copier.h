#ifndef EGERIA_WORKER_SESSION_HOST_COPIER_H_
#define EGERIA_WORKER_SESSION_HOST_COPIER_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "c10/core/Device.h"
#include "c10/core/Event.h"
#include "c10/core/Stream.h"
#include "common/tensor/wire_tensor.h"
#include "worker/freeze/named_tensor.h"

namespace egeria::worker {

// Brings tensors from the training device to the host without making the training thread wait. On the CPU
// that is a copy at once. On an accelerator it is a copy into pinned memory on a stream of its own, behind an
// event; a later Poll() hands on what has arrived. The same source serves every device type.
//
// It is owned by the training thread. Nothing is handed on after the destructor has begun.
class HostCopier {
 public:
  using Done = std::function<void(std::vector<WireTensor>)>;
  static constexpr size_t kLargestQueue = 64;

  explicit HostCopier(c10::Device device);

  // Copies the tensors as they are at this point of the current stream, and calls `done` with them: now, or
  // from Poll(), in the order of the calls. The caller must not change them in place afterwards.
  // Returns false, and does nothing, while kLargestQueue copies are under way, or for an element type that
  // the wire has not.
  bool Copy(std::vector<NamedTensor> tensors, Done done);

  // Hands on what has arrived. It never waits.
  void Poll();
  // Waits for everything that is under way and hands it on, at the end of training.
  void Drain();

 private:
  struct Pending {
    std::vector<NamedTensor> host;
    c10::Event arrived;
    Done done;
  };
  static void HandOn(const std::vector<NamedTensor>& host, const Done& done);

  const c10::Device device_;
  std::optional<c10::Stream> stream_;  // accelerators only
  std::deque<Pending> pending_;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_HOST_COPIER_H_

#ifndef EGERIA_WORKER_AGENT_UPLOAD_CUTTER_H_
#define EGERIA_WORKER_AGENT_UPLOAD_CUTTER_H_

#include <cstddef>
#include <cstdint>

#include "egeria/v1/controller.pb.h"
#include "worker/agent/upload.h"

namespace egeria::worker {

// Cuts an upload into the messages of the stream: a first message, which is all where there are no tensors to send, and
// then chunks of at most rpc::kMaxChunkBytes that run on across tensors. The upload must outlive the cutter.
// Thread-compatible.
class UploadCutter {
 public:
  UploadCutter(const Upload* upload, int64_t upload_id)
      : upload_(upload), upload_id_(upload_id), bytes_(ByteSizeOf(*upload)) {}

  // Fills in the next message, or returns false when the last one has been given.
  bool Next(v1::WorkerMessage* message);

 private:
  const Upload* const upload_;
  const int64_t upload_id_;
  const size_t bytes_;
  bool begun_ = false;
  size_t sent_ = 0;       // bytes of the upload
  size_t tensor_ = 0;     // the index of the tensor that holds the next byte
  size_t in_tensor_ = 0;  // the offset of that byte in it
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_UPLOAD_CUTTER_H_

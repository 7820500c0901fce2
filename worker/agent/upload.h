#ifndef EGERIA_WORKER_AGENT_UPLOAD_H_
#define EGERIA_WORKER_AGENT_UPLOAD_H_

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/wire_tensor.h"
#include "egeria/v1/controller.pb.h"
#include "worker/agent/agent.h"

namespace egeria::worker {

// A sample, a reading (of plasticity or of gradients) or a snapshot on its way to the controller.
using UploadContent = std::variant<Sample, Snapshot, Reading, GradientReading>;
struct Upload {
  UploadContent content;
  size_t bytes = 0;  // of all its tensors

  // Also of a reading of either kind, which takes a sample's place in all respects but its form.
  bool is_sample() const { return !std::holds_alternative<Snapshot>(content); }
  const std::vector<WireTensor>& tensors() const;  // a reading has none
};

// Checks that every tensor holds as many bytes as its type and shape say.
// Errors: INVALID_ARGUMENT naming the tensor.
absl::StatusOr<Upload> MakeUpload(UploadContent content);

// Cuts an upload into the messages of the stream: a header, then chunks of at most rpc::kMaxChunkBytes that
// run on across tensors. A reading is one message. The upload must outlive it. Thread-compatible.
class UploadCutter {
 public:
  UploadCutter(const Upload* upload, int64_t upload_id) : upload_(upload), upload_id_(upload_id) {}

  // Fills in the next message, or returns false when the last one has been given.
  bool Next(v1::WorkerMessage* message);

 private:
  void FillReading(const Reading& reading, v1::Reading* message) const;
  void FillGradients(const GradientReading& reading, v1::GradientReading* message) const;
  void FillHeader(v1::UploadBegin* begin) const;

  const Upload* const upload_;
  const int64_t upload_id_;
  bool begun_ = false;
  size_t sent_ = 0;       // bytes of the upload
  size_t tensor_ = 0;     // the tensor that the next byte is of
  size_t in_tensor_ = 0;  // its offset there
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_UPLOAD_H_

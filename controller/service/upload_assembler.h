#ifndef EGERIA_CONTROLLER_SERVICE_UPLOAD_ASSEMBLER_H_
#define EGERIA_CONTROLLER_SERVICE_UPLOAD_ASSEMBLER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tensor/wire_tensor.h"
#include "egeria/v1/controller.pb.h"

namespace egeria::controller {

struct UploadLimits {
  size_t max_upload_bytes = size_t{4} << 30;
  size_t max_chunk_bytes = (size_t{1} << 20) + (size_t{64} << 10);  // 1 MiB and some slack
  int max_tensors = 4'096;
  int max_dimensions = 16;
  size_t max_name_length = 256;
};

// The bytes of unfinished uploads that all streams together may still take. A stream gets no more than it leaves to the
// others, so that nobody can take everything. Thread-safe.
class UploadBudget {
 public:
  explicit UploadBudget(size_t bytes) : left_(static_cast<int64_t>(bytes)) {}
  // Takes bytes for a stream that has `held` so far. Returns false where that is too much.
  bool Take(size_t bytes, size_t held) {
    const int64_t taken = static_cast<int64_t>(bytes);
    const int64_t after = left_.fetch_sub(taken) - taken;
    if (after >= taken + static_cast<int64_t>(held)) return true;
    Return(bytes);
    return false;
  }
  void Return(size_t bytes) { left_.fetch_add(static_cast<int64_t>(bytes)); }

 private:
  std::atomic<int64_t> left_;
};

// Puts the chunks of one stream's uploads together. Memory grows with the bytes that have come, never with the number
// that was announced. Pure but for the shared budget; thread-compatible.
//
// A message that breaks the protocol is an error, and the stream ends with it. An upload that is only unusable (see
// Outcome) is refused while its chunks are passed over, and the stream goes on.
class UploadAssembler {
 public:
  // The outcome of a message. At most one of the two is set.
  struct Outcome {
    struct Upload {
      v1::UploadBegin begin;
      std::vector<WireTensor> tensors;
    };
    std::optional<Upload> complete;
    // The reason for which the upload is refused, said once per upload: RESOURCE_EXHAUSTED [QUEUE_FULL] the budget is
    // spent; INVALID_ARGUMENT [BAD_DTYPE], [BAD_SHAPE] an announced tensor is impossible.
    absl::Status refused;
  };

  // `budget` must outlive the assembler, or its last Discard().
  UploadAssembler(UploadLimits limits, UploadBudget* budget) : limits_(limits), budget_(budget) {}
  ~UploadAssembler() { Clear(); }
  UploadAssembler(const UploadAssembler&) = delete;
  UploadAssembler& operator=(const UploadAssembler&) = delete;

  // Starts an upload. An upload of no bytes is complete at once.
  // Errors: INVALID_ARGUMENT [BAD_MESSAGE] the upload before is not complete, the id does not rise, there is no header,
  // too many tensors or dimensions or too long a name; RESOURCE_EXHAUSTED [UPLOAD_TOO_LARGE].
  absl::StatusOr<Outcome> Begin(const v1::UploadBegin& begin);

  // Passes over the chunks of the upload that has just begun, since nobody wants it. Its bytes go back to the budget.
  void Discard();

  // Adds a chunk. Errors: INVALID_ARGUMENT [BAD_MESSAGE] no such upload, a gap or a repetition, more bytes than
  // announced; RESOURCE_EXHAUSTED [UPLOAD_TOO_LARGE] the chunk or the upload is too large.
  absl::StatusOr<Outcome> Add(const v1::UploadChunk& chunk);

  // Whether bytes of an upload have come and wait for the rest.
  bool unfinished() const { return open_ && !discarding_; }
  // The header of the upload that began last.
  const v1::UploadBegin& begin() const { return begin_; }

 private:
  void Clear();
  absl::Status CheckForm(const v1::UploadBegin& begin) const;
  Outcome Complete();

  const UploadLimits limits_;
  UploadBudget* const budget_;

  int64_t last_id_ = 0;
  v1::UploadBegin begin_;
  bool open_ = false;
  bool discarding_ = false;
  bool total_known_ = false;
  size_t total_ = 0;  // bytes announced
  size_t received_ = 0;
  size_t held_ = 0;  // bytes taken from the budget
  std::vector<TensorSpec> specs_;
  std::vector<size_t> sizes_;
  std::vector<std::vector<std::byte>> data_;
  size_t filling_ = 0;  // index of the tensor whose bytes come next
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_SERVICE_UPLOAD_ASSEMBLER_H_

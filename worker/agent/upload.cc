#include "worker/agent/upload.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace egeria::worker {

Sample SampleOf(const SamplingRequest& request, int64_t step) {
  return {.module = request.module,
          .first_module = request.first_module,
          .step = step,
          .request_version = request.version,
          .metric = request.metric};
}

const std::vector<WireTensor>& TensorsOf(const Upload& upload) {
  static const auto* const kNone = new std::vector<WireTensor>();
  return std::visit(
      [](const auto& content) -> const std::vector<WireTensor>& {
        if constexpr (requires { content.tensors; }) return content.tensors;
        else return *kNone;
      },
      upload);
}

size_t ByteSizeOf(const Upload& upload) {
  size_t bytes = 0;
  for (const WireTensor& tensor : TensorsOf(upload)) bytes += tensor.size();
  return bytes;
}

absl::Status CheckTensors(const Upload& upload) {
  for (const WireTensor& tensor : TensorsOf(upload)) {
    EGERIA_ASSIGN_OR_RETURN(const size_t expected, ByteSize(tensor.spec));
    if (tensor.size() != expected) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.spec.name, "' holds ", tensor.size(),
                                                     " bytes, and its shape asks for ", expected));
    }
  }
  return absl::OkStatus();
}

}  // namespace egeria::worker

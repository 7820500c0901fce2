#include "common/reference/wire_checks.h"

#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace egeria::reference {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
// A sample is a few dozen rows; this only bounds the Gram matrix.
constexpr int64_t kMaxBatch = 4096;

// An element is infinite or not a number exactly when all its exponent bits are set. Without a branch in the
// loop, so that it vectorises.
template <typename Bits>
bool ExponentsAreFinite(const WireTensor& tensor, Bits exponent) {
  const size_t count = tensor.size() / sizeof(Bits);
  const std::byte* data = tensor.data();
  Bits bad = 0;
  for (size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    bad |= static_cast<Bits>((bits & exponent) == exponent);
  }
  return bad == 0;
}

std::string Shape(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ","), "]"); }

}  // namespace

bool IsFinite(const WireTensor& tensor) {
  switch (tensor.spec.dtype) {
    case DataType::kFloat32: return ExponentsAreFinite<uint32_t>(tensor, 0x7f800000u);
    case DataType::kFloat64: return ExponentsAreFinite<uint64_t>(tensor, 0x7ff0000000000000u);
    case DataType::kFloat16: return ExponentsAreFinite<uint16_t>(tensor, 0x7c00u);
    case DataType::kBFloat16: return ExponentsAreFinite<uint16_t>(tensor, 0x7f80u);
    default: return true;
  }
}

absl::Status CheckWireTensor(const TensorSpec& spec, const WireTensor& tensor) {
  if (tensor.spec.dtype != spec.dtype) {
    return NamedError(kInvalid, "BAD_DTYPE", "'", spec.name, "' is ", DataTypeName(tensor.spec.dtype),
                      ", the graph says ", DataTypeName(spec.dtype));
  }
  bool fits = tensor.spec.shape.size() == spec.shape.size();
  for (size_t i = 0; fits && i < spec.shape.size(); ++i) {
    fits = spec.shape[i] == -1 ? tensor.spec.shape[i] > 0 : tensor.spec.shape[i] == spec.shape[i];
  }
  if (!fits) {
    return NamedError(kInvalid, "BAD_SHAPE", "'", spec.name, "' is ", Shape(tensor.spec.shape), ", the graph says ",
                      Shape(spec.shape));
  }
  EGERIA_ASSIGN_OR_RETURN(const size_t bytes, ByteSize(tensor.spec));
  if (tensor.size() != bytes) {
    return NamedError(kInvalid, "BAD_SHAPE", "'", spec.name, "' has ", tensor.size(), " bytes, its shape ",
                      Shape(tensor.spec.shape), " needs ", bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckSample(const std::vector<TensorSpec>& inputs, absl::Span<const WireTensor> tensors,
                         plasticity::ActivationMetric metric) {
  if (tensors.size() != inputs.size() + 1) {
    return NamedError(kInvalid, "BAD_SHAPE", "the sample has ", tensors.size(), " tensors and should have ",
                      inputs.size(), ", one for each input of the module, and one of its output");
  }
  int64_t batch = -1;
  for (size_t i = 0; i < inputs.size(); ++i) {
    EGERIA_RETURN_IF_ERROR(CheckWireTensor(inputs[i], tensors[i]));
    if (!IsFinite(tensors[i])) {
      return NamedError(kInvalid, "SAMPLE_NOT_FINITE", "input '", inputs[i].name, "'");
    }
    if (inputs[i].shape[0] != -1) continue;  // not batched: a table that all rows share
    if (batch == -1) batch = tensors[i].spec.shape[0];
    if (batch != tensors[i].spec.shape[0]) {
      return NamedError(kInvalid, "BAD_SHAPE", "input '", inputs[i].name, "' has a batch of ", tensors[i].spec.shape[0],
                        ", the input before it of ", batch);
    }
  }
  const WireTensor& compared = tensors.back();
  if (batch == -1 && compared.spec.shape.size() == 2) batch = compared.spec.shape[0];
  if (batch < 2 || batch > kMaxBatch) {
    return NamedError(kInvalid, "BAD_SHAPE", "a batch of ", batch, ", not in 2..", kMaxBatch);
  }
  const int64_t width = metric == plasticity::ActivationMetric::kSpLoss ? batch : -1;
  EGERIA_RETURN_IF_ERROR(CheckWireTensor({compared.spec.name, DataType::kFloat32, {batch, width}}, compared));
  if (!IsFinite(compared)) return NamedError(kInvalid, "SAMPLE_NOT_FINITE", "'", compared.spec.name, "'");
  return absl::OkStatus();
}

absl::StatusOr<std::vector<WireTensor>> MatchWeights(const std::vector<TensorSpec>& specs,
                                                     std::vector<WireTensor> weights) {
  absl::flat_hash_map<std::string, size_t> by_name;
  for (size_t i = 0; i < weights.size(); ++i) by_name.emplace(weights[i].spec.name, i);
  std::vector<WireTensor> matched;
  matched.reserve(specs.size());
  for (const TensorSpec& spec : specs) {
    const auto found = by_name.find(spec.name);
    if (found == by_name.end()) {
      return NamedError(kInvalid, "MISSING_WEIGHT", "the snapshot lacks '", spec.name, "'");
    }
    WireTensor& weight = weights[found->second];
    EGERIA_RETURN_IF_ERROR(CheckWireTensor(spec, weight));
    if (!IsFinite(weight)) return NamedError(kInvalid, "SNAPSHOT_NOT_FINITE", "'", spec.name, "'");
    matched.push_back(std::move(weight));
  }
  return matched;
}

}  // namespace egeria::reference

#ifndef EGERIA_COMMON_REFERENCE_QUANTIZE_H_
#define EGERIA_COMMON_REFERENCE_QUANTIZE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "common/reference/backend.h"

// 8-bit values of float32 tensors: value = scale * (byte - zero_point).
namespace egeria::reference {

struct QuantizationParameters {
  double scale = 1;
  int64_t zero_point = 0;  // 0..255
};

// Covers the range, zero included, with `margin` times its ends: without a margin another batch's values are
// clipped, which costs more than rounding does. The range must be known and finite.
QuantizationParameters ChooseParameters(const ActivationRange& range, float margin);

// u8 of the same shape and layout (contiguous if the input is not dense). Values beyond the range take its
// end and are counted. May throw.
at::Tensor Quantize(const at::Tensor& input, const QuantizationParameters& parameters, SaturationCount* count);

// float32 of the same shape and layout. May throw.
at::Tensor Dequantize(const at::Tensor& input, const QuantizationParameters& parameters);

// Counts the bytes that lie at the end of their range: 255, and 0 where the zero point is above it. An
// operator that quantises its result itself tells no more.
void CountSaturated(const at::Tensor& bytes, const QuantizationParameters& parameters, SaturationCount* count);

// Per-channel (dimension 0) symmetric s8 of a weight, up to `largest` (at most 127) in size, and the channels'
// scales in float32.
struct QuantizedWeight {
  at::Tensor values, scales, zero_points;
};
QuantizedWeight QuantizeWeight(const at::Tensor& weight, int largest);

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_QUANTIZE_H_

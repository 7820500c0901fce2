#include "controller/reference/quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/round.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

namespace egeria::reference {
namespace {

constexpr int64_t kGrain = 1 << 16;  // elements a thread takes at least

// Compiled a second time for AVX-512, chosen at load; the loops are written so that they vectorise.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define EGERIA_VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define EGERIA_VECTORISED
#endif

// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, as long as |x| < 2^22; the clamp before it
// keeps to that, and turns what is not a number into 0. Returns how many values lay beyond the range.
EGERIA_VECTORISED int64_t QuantizeRange(const float* in, uint8_t* out, int64_t count, float inverse, float zero) {
  constexpr float kRounder = 12582912.0f;
  int64_t saturated = 0;
  for (int64_t begin = 0; begin < count; begin += 4096) {
    const int64_t end = std::min(begin + 4096, count);
    int32_t beyond = 0;
    for (int64_t i = begin; i < end; ++i) {
      const float value = in[i] * inverse + zero;
      const float low = value > -1.0f ? value : -1.0f;
      const float clamped = low < 256.0f ? low : 256.0f;
      const float rounded = (clamped + kRounder) - kRounder;
      const float inside = std::min(std::max(rounded, 0.0f), 255.0f);
      beyond += inside != rounded ? 1 : 0;
      out[i] = static_cast<uint8_t>(static_cast<int32_t>(inside));
    }
    saturated += beyond;
  }
  return saturated;
}

EGERIA_VECTORISED void DequantizeRange(const uint8_t* in, float* out, int64_t count, float scale, float zero) {
  for (int64_t i = 0; i < count; ++i) out[i] = (static_cast<float>(in[i]) - zero) * scale;
}

EGERIA_VECTORISED int64_t CountEnds(const uint8_t* bytes, int64_t count, uint8_t low, uint8_t high) {
  int64_t total = 0;
  for (int64_t begin = 0; begin < count; begin += 4096) {
    const int64_t end = std::min(begin + 4096, count);
    int32_t ends = 0;
    for (int64_t i = begin; i < end; ++i) ends += (bytes[i] == high) | (bytes[i] == low);
    total += ends;
  }
  return total;
}

}  // namespace

QuantizationParameters ChooseParameters(const ActivationRange& range, float margin) {
  const double low = std::min(range.low * margin, 0.0f), high = std::max(range.high * margin, 0.0f);
  QuantizationParameters parameters;
  parameters.scale = std::max((high - low) / 255, 1e-30);
  parameters.zero_point = std::clamp<int64_t>(std::lround(-low / parameters.scale), 0, 255);
  return parameters;
}

at::Tensor Quantize(const at::Tensor& input, const QuantizationParameters& parameters, SaturationCount* count) {
  TORCH_CHECK(input.scalar_type() == at::kFloat, "8-bit values are made from float32, not ", input.scalar_type());
  const at::Tensor dense = input.is_non_overlapping_and_dense() ? input : input.contiguous();
  at::Tensor output = at::empty_like(dense, dense.options().dtype(at::kByte));
  const float* in = dense.const_data_ptr<float>();
  uint8_t* out = output.mutable_data_ptr<uint8_t>();
  std::atomic<int64_t> saturated{0};
  const auto inverse = static_cast<float>(1 / parameters.scale);
  const auto zero = static_cast<float>(parameters.zero_point);
  at::parallel_for(0, dense.numel(), kGrain, [&](int64_t begin, int64_t end) {
    saturated += QuantizeRange(in + begin, out + begin, end - begin, inverse, zero);
  });
  count->elements += dense.numel();
  count->saturated += saturated;
  return output;
}

at::Tensor Dequantize(const at::Tensor& input, const QuantizationParameters& parameters) {
  const at::Tensor dense = input.is_non_overlapping_and_dense() ? input : input.contiguous();
  at::Tensor output = at::empty_like(dense, dense.options().dtype(at::kFloat));
  const uint8_t* in = dense.const_data_ptr<uint8_t>();
  float* out = output.mutable_data_ptr<float>();
  at::parallel_for(0, dense.numel(), kGrain, [&](int64_t begin, int64_t end) {
    DequantizeRange(in + begin, out + begin, end - begin, static_cast<float>(parameters.scale),
                    static_cast<float>(parameters.zero_point));
  });
  return output;
}

void CountSaturated(const at::Tensor& bytes, const QuantizationParameters& parameters, SaturationCount* count) {
  if (!bytes.is_non_overlapping_and_dense()) return;
  const uint8_t low = parameters.zero_point > 0 ? 0 : 255;
  count->elements += bytes.numel();
  count->saturated += CountEnds(bytes.const_data_ptr<uint8_t>(), bytes.numel(), low, 255);
}

QuantizedWeight QuantizeWeight(const at::Tensor& weight) {
  QuantizedWeight quantized;
  quantized.scales = at::clamp_min(at::amax(at::abs(weight.flatten(1)), 1), 1e-12).div(127).to(at::kFloat);
  std::vector<int64_t> broadcast(weight.dim(), 1);
  broadcast[0] = -1;
  quantized.values = at::clamp(at::round(weight / quantized.scales.view(broadcast)), -127, 127).to(at::kChar);
  quantized.zero_points = at::zeros({quantized.scales.numel()}, at::kInt);
  return quantized;
}

}  // namespace egeria::reference

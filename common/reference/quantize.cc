#include "common/reference/quantize.h"

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

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

namespace egeria::reference {
namespace {

constexpr int64_t kGrain = 1 << 16;  // elements a thread takes at least

// The loops are written so that they vectorise, and are compiled once for each instruction set below. Chosen
// by hand when first used: compiler-made resolvers run before a sanitizer is ready for them.
#if defined(__GNUC__)
#define EGERIA_INLINE inline __attribute__((always_inline))
#else
#define EGERIA_INLINE inline
#endif

// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, as long as |x| < 2^22; the clamp before it
// keeps to that, and turns what is not a number into 0. Returns how many values lay beyond the range.
EGERIA_INLINE int64_t QuantizeLoop(const float* in, uint8_t* out, int64_t count, float inverse, float zero) {
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
      const float positive = rounded > 0.0f ? rounded : 0.0f;
      const float inside = positive < 255.0f ? positive : 255.0f;
      beyond += inside != rounded ? 1 : 0;
      out[i] = static_cast<uint8_t>(static_cast<int32_t>(inside));
    }
    saturated += beyond;
  }
  return saturated;
}

EGERIA_INLINE void DequantizeLoop(const uint8_t* in, float* out, int64_t count, float scale, float zero) {
  for (int64_t i = 0; i < count; ++i) out[i] = (static_cast<float>(in[i]) - zero) * scale;
}

EGERIA_INLINE int64_t CountLoop(const uint8_t* bytes, int64_t count, uint8_t low, uint8_t high) {
  int64_t total = 0;
  for (int64_t begin = 0; begin < count; begin += 4096) {
    const int64_t end = std::min(begin + 4096, count);
    int32_t ends = 0;
    for (int64_t i = begin; i < end; ++i) ends += (bytes[i] == high) | (bytes[i] == low);
    total += ends;
  }
  return total;
}

struct Kernels {
  int64_t (*quantize)(const float*, uint8_t*, int64_t, float, float);
  void (*dequantize)(const uint8_t*, float*, int64_t, float, float);
  int64_t (*count_ends)(const uint8_t*, int64_t, uint8_t, uint8_t);
};

#define EGERIA_KERNELS(name, attributes)                                                                       \
  attributes int64_t Quantize##name(const float* in, uint8_t* out, int64_t count, float inverse, float zero) { \
    return QuantizeLoop(in, out, count, inverse, zero);                                                        \
  }                                                                                                            \
  attributes void Dequantize##name(const uint8_t* in, float* out, int64_t count, float scale, float zero) {    \
    DequantizeLoop(in, out, count, scale, zero);                                                               \
  }                                                                                                            \
  attributes int64_t Count##name(const uint8_t* bytes, int64_t count, uint8_t low, uint8_t high) {             \
    return CountLoop(bytes, count, low, high);                                                                 \
  }                                                                                                            \
  constexpr Kernels k##name = {&Quantize##name, &Dequantize##name, &Count##name};

EGERIA_KERNELS(Plain, )
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
EGERIA_KERNELS(Avx2, __attribute__((target("avx2,fma"), optimize("O3"))))
EGERIA_KERNELS(Avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"), optimize("O3"))))

const Kernels& BestKernels() {
  static const Kernels& best =
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
          ? kAvx512
      : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? kAvx2
                                                                        : kPlain;
  return best;
}
#else
const Kernels& BestKernels() { return kPlain; }
#endif

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
    saturated += BestKernels().quantize(in + begin, out + begin, end - begin, inverse, zero);
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
    BestKernels().dequantize(in + begin, out + begin, end - begin, static_cast<float>(parameters.scale),
                             static_cast<float>(parameters.zero_point));
  });
  return output;
}

void CountSaturated(const at::Tensor& bytes, const QuantizationParameters& parameters, SaturationCount* count) {
  if (!bytes.is_non_overlapping_and_dense()) return;
  const uint8_t low = parameters.zero_point > 0 ? 0 : 255;
  count->elements += bytes.numel();
  count->saturated += BestKernels().count_ends(bytes.const_data_ptr<uint8_t>(), bytes.numel(), low, 255);
}

QuantizedWeight QuantizeWeight(const at::Tensor& weight, int largest) {
  QuantizedWeight quantized;
  quantized.scales = at::clamp_min(at::amax(at::abs(weight.flatten(1)), 1), 1e-12).div(largest).to(at::kFloat);
  std::vector<int64_t> broadcast(weight.dim(), 1);
  broadcast[0] = -1;
  quantized.values = at::clamp(at::round(weight / quantized.scales.view(broadcast)), -largest, largest).to(at::kChar);
  quantized.zero_points = at::zeros({quantized.scales.numel()}, at::kInt);
  return quantized;
}

}  // namespace egeria::reference

#include "worker/cache/entry/int8_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace egeria::cache {
namespace {

// The numbers are those of docs/reference/formats/cache-entry.md.
enum class Axis : uint32_t { kWhole = 0, kFirst = 1, kLast = 2 };

constexpr size_t kValuesOfChannel = 16;
constexpr float kMost = 127;
// Channels without larger values are stored as zeros; their scales would not be normal numbers.
constexpr float kLeast = 1e-30f;
constexpr float kLargest = 1e38f;  // a larger value might be rounded to an infinite one

// Value i belongs to channel i / run % count.
struct Channels {
  size_t count = 1;
  size_t run = 1;
};

Channels ChannelsOf(Axis axis, std::span<const int64_t> shape, size_t values) {
  if (axis == Axis::kFirst) return {static_cast<size_t>(shape.front()), values / static_cast<size_t>(shape.front())};
  if (axis == Axis::kLast) return {static_cast<size_t>(shape.back()), 1};
  return {1, values};
}

// Calls body(channel, value's index) for each value.
template <typename Body>
void ForEach(Channels channels, size_t values, const Body& body) {
  for (size_t at = 0; at < values;) {
    for (size_t channel = 0; channel < channels.count; ++channel) {
      for (const size_t end = at + channels.run; at < end; ++at) body(channel, at);
    }
  }
}

// Returns the smallest number with 16 significant bits that is not less. So a scale times 127 is exact, and values that
// were rounded once are rounded to themselves.
float RoundUp(float value) {
  constexpr uint32_t kRest = (1u << 8) - 1;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + kRest) & ~kRest);
}

std::vector<float> ScalesOf(Channels channels, std::span<const float> values) {
  std::vector<float> scales(channels.count, 0);
  ForEach(channels, values.size(),
          [&](size_t channel, size_t i) { scales[channel] = std::max(scales[channel], std::abs(values[i])); });
  for (float& scale : scales) scale = scale < kLeast ? 0 : RoundUp(scale / kMost);
  return scales;
}

int8_t Quantize(float value, float scale) {
  return scale == 0 ? 0 : static_cast<int8_t>(std::clamp(std::nearbyint(value / scale), -kMost, kMost));
}

double SquaredError(Channels channels, std::span<const float> scales, std::span<const float> values) {
  double sum = 0;
  ForEach(channels, values.size(), [&](size_t channel, size_t i) {
    const double difference = values[i] - Quantize(values[i], scales[channel]) * scales[channel];
    sum += difference * difference;
  });
  return sum;
}

bool MayHave(Axis axis, std::span<const int64_t> shape, size_t values) {
  if (axis == Axis::kWhole) return true;
  return shape.size() > 1 && ChannelsOf(axis, shape, values).count * kValuesOfChannel <= values;
}

}  // namespace

size_t StoreInt8(std::span<const int64_t> shape, std::span<const float> values, std::span<std::byte> out,
                 std::vector<float>* rounded) {
  const auto fits = [](float value) { return std::abs(value) < kLargest; };
  if (values.empty() || !std::ranges::all_of(values, fits)) return 0;
  auto best = Axis::kWhole;
  std::vector<float> scales;
  double least = std::numeric_limits<double>::infinity();
  for (const Axis axis : {Axis::kWhole, Axis::kFirst, Axis::kLast}) {
    if (!MayHave(axis, shape, values.size())) continue;
    const Channels channels = ChannelsOf(axis, shape, values.size());
    std::vector<float> own = ScalesOf(channels, values);
    const double error = SquaredError(channels, own, values);
    if (error >= least) continue;
    best = axis;
    scales = std::move(own);
    least = error;
  }
  const size_t scales_bytes = scales.size() * sizeof(float);
  const size_t bytes = sizeof(best) + scales_bytes + values.size();
  if (bytes >= values.size_bytes()) return 0;
  std::memcpy(out.data(), &best, sizeof(best));
  std::memcpy(out.data() + sizeof(best), scales.data(), scales_bytes);
  auto* const stored = reinterpret_cast<int8_t*>(out.data() + sizeof(best) + scales_bytes);
  rounded->resize(values.size());
  ForEach(ChannelsOf(best, shape, values.size()), values.size(), [&](size_t channel, size_t i) {
    stored[i] = Quantize(values[i], scales[channel]);
    (*rounded)[i] = stored[i] * scales[channel];
  });
  return bytes;
}

bool RestoreInt8(std::span<const int64_t> shape, std::span<const std::byte> stored, std::span<float> values) {
  auto axis = Axis::kWhole;
  if (values.empty() || stored.size() < sizeof(axis)) return false;
  std::memcpy(&axis, stored.data(), sizeof(axis));
  if (axis > Axis::kLast || !MayHave(axis, shape, values.size())) return false;
  const Channels channels = ChannelsOf(axis, shape, values.size());
  if (stored.size() != sizeof(axis) + channels.count * sizeof(float) + values.size()) return false;
  std::vector<float> scales(channels.count);
  std::memcpy(scales.data(), stored.data() + sizeof(axis), channels.count * sizeof(float));
  const auto* const numbers = reinterpret_cast<const int8_t*>(stored.data() + stored.size() - values.size());
  ForEach(channels, values.size(), [&](size_t channel, size_t i) { values[i] = numbers[i] * scales[channel]; });
  return true;
}

}  // namespace egeria::cache

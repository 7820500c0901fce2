#include "worker/cache/entry/storage_format.h"

#include <blosc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/base/status.h"
#include "worker/cache/entry/int8_format.h"

// These are header-only parts of torch; this library does not link torch.
#include "torch/headeronly/util/BFloat16.h"
#include "torch/headeronly/util/Half.h"

namespace egeria::cache {
namespace {

constexpr std::array<const char*, 6> kNames = {"exact", "lz4", "zstd", "fp16", "bf16", "int8"};

// This many values are rounded at once: few enough to stay in the first-level cache.
constexpr size_t kPiece = 1'024;

Stored Copy(std::span<const std::byte> values, std::span<std::byte> out) {
  if (!values.empty()) std::memcpy(out.data(), values.data(), values.size());
  return {StorageFormat::kExact, values.size()};
}

Stored Compress(StorageFormat format, DataType type, std::span<const std::byte> values, std::span<std::byte> out) {
  // The result must be shorter than the values. Higher levels take longer and gain next to nothing on activations.
  const bool zstd = format == StorageFormat::kZstd;
  if (values.empty() || values.size() > BLOSC_MAX_BUFFERSIZE) return Copy(values, out);
  const int bytes = blosc_compress_ctx(zstd ? 1 : 5, BLOSC_SHUFFLE, ElementSize(type), values.size(), values.data(),
                                       out.data(), values.size() - 1, zstd ? BLOSC_ZSTD_COMPNAME : BLOSC_LZ4_COMPNAME,
                                       /*blocksize=*/0, /*numinternalthreads=*/1);
  if (bytes <= 0) return Copy(values, out);
  return {format, static_cast<size_t>(bytes)};
}

bool Decompress(std::span<const std::byte> stored, std::span<std::byte> values) {
  size_t bytes = 0;
  if (blosc_cbuffer_validate(stored.data(), stored.size(), &bytes) != 0 || bytes != values.size()) return false;
  return blosc_decompress_ctx(stored.data(), values.data(), values.size(), /*numinternalthreads=*/1) ==
         static_cast<int>(values.size());
}

template <typename Narrow>
Stored Round(StorageFormat format, std::span<const std::byte> values, std::span<std::byte> out, RoundingError* error) {
  const size_t count = values.size() / sizeof(float);
  std::array<float, kPiece> exact, rounded;
  std::array<Narrow, kPiece> narrow;
  RoundingError here;
  for (size_t at = 0; at < count; at += kPiece) {
    const size_t some = std::min(kPiece, count - at);
    std::memcpy(exact.data(), values.data() + at * sizeof(float), some * sizeof(float));
    bool overflow = false;
    for (size_t i = 0; i < some; ++i) {
      narrow[i] = Narrow(exact[i]);
      rounded[i] = static_cast<float>(narrow[i]);
      overflow |= std::isinf(rounded[i]) && !std::isinf(exact[i]);
    }
    if (overflow) return Copy(values, out);
    here.Add(std::span(exact).first(some), std::span(rounded).first(some));
    std::memcpy(out.data() + at * sizeof(Narrow), narrow.data(), some * sizeof(Narrow));
  }
  error->Add(here);
  return {format, count * sizeof(Narrow)};
}

template <typename Narrow>
bool Widen(std::span<const std::byte> stored, std::span<std::byte> values) {
  const size_t count = values.size() / sizeof(float);
  if (stored.size() != count * sizeof(Narrow)) return false;
  std::array<float, kPiece> wide;
  std::array<Narrow, kPiece> narrow;
  for (size_t at = 0; at < count; at += kPiece) {
    const size_t some = std::min(kPiece, count - at);
    std::memcpy(narrow.data(), stored.data() + at * sizeof(Narrow), some * sizeof(Narrow));
    for (size_t i = 0; i < some; ++i) wide[i] = static_cast<float>(narrow[i]);
    std::memcpy(values.data() + at * sizeof(float), wide.data(), some * sizeof(float));
  }
  return true;
}

std::vector<float> FloatsOf(std::span<const std::byte> bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  if (!floats.empty()) std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

Stored RoundToInt8(std::span<const int64_t> shape, std::span<const std::byte> values, std::span<std::byte> out,
                   RoundingError* error) {
  const std::vector<float> exact = FloatsOf(values);
  std::vector<float> rounded;
  const size_t bytes = StoreInt8(shape, exact, out, &rounded);
  if (bytes == 0) return Copy(values, out);
  error->Add(exact, rounded);
  return {StorageFormat::kInt8, bytes};
}

bool WidenFromInt8(std::span<const int64_t> shape, std::span<const std::byte> stored, std::span<std::byte> values) {
  std::vector<float> floats(values.size() / sizeof(float));
  if (!RestoreInt8(shape, stored, floats)) return false;
  std::memcpy(values.data(), floats.data(), values.size());
  return true;
}

}  // namespace

absl::StatusOr<WantedFormat> WantedFormatOf(absl::string_view name) {
  if (name == "auto") return WantedFormat{.automatic = true};
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_CONFIG", "'", name,
                      "' is no format of the cache: auto, exact, lz4, zstd, fp16, bf16 or int8");
  }
  return WantedFormat{.format = static_cast<StorageFormat>(found - kNames.begin())};
}

const char* StorageFormatName(StorageFormat format) { return kNames.at(static_cast<size_t>(format)); }

bool Rounds(StorageFormat format) { return format >= StorageFormat::kFloat16; }

Fingerprint StoredPrefix(const Fingerprint& prefix, StorageFormat format) {
  Fingerprint stored = prefix;
  if (!Rounds(format)) return stored;
  const absl::string_view name = StorageFormatName(format);
  for (size_t i = 0; i < name.size(); ++i) stored[i] ^= static_cast<uint8_t>(name[i]);
  return stored;
}

void RoundingError::Add(std::span<const float> values, std::span<const float> rounded) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    const double value = values[i];
    const double difference = std::abs(static_cast<double>(rounded[i]) - value);
    ++values_;
    squares_ += value * value;
    squared_differences_ += difference * difference;
    largest_difference_ = std::max(largest_difference_, difference);
  }
}

void RoundingError::Add(const RoundingError& other) {
  values_ += other.values_;
  squares_ += other.squares_;
  squared_differences_ += other.squared_differences_;
  largest_difference_ = std::max(largest_difference_, other.largest_difference_);
}

double RoundingError::largest() const {
  return squares_ > 0 ? largest_difference_ / std::sqrt(squares_ / static_cast<double>(values_)) : 0;
}

double RoundingError::root_mean_square() const { return squares_ > 0 ? std::sqrt(squared_differences_ / squares_) : 0; }

Stored Store(StorageFormat wanted, DataType type, std::span<const int64_t> shape, std::span<const std::byte> values,
             std::span<std::byte> out, RoundingError* error) {
  switch (wanted) {
    case StorageFormat::kExact: return Copy(values, out);
    case StorageFormat::kLz4:
    case StorageFormat::kZstd: return Compress(wanted, type, values, out);
    case StorageFormat::kFloat16:
      return type == DataType::kFloat32 ? Round<c10::Half>(wanted, values, out, error) : Copy(values, out);
    case StorageFormat::kBFloat16:
      return type == DataType::kFloat32 ? Round<c10::BFloat16>(wanted, values, out, error) : Copy(values, out);
    case StorageFormat::kInt8:
      return type == DataType::kFloat32 ? RoundToInt8(shape, values, out, error) : Copy(values, out);
  }
  return Copy(values, out);
}

bool Restore(StorageFormat format, DataType type, std::span<const int64_t> shape, std::span<const std::byte> stored,
             std::span<std::byte> values) {
  switch (format) {
    case StorageFormat::kExact:
      if (stored.size() != values.size()) return false;
      if (!values.empty()) std::memcpy(values.data(), stored.data(), stored.size());
      return true;
    case StorageFormat::kLz4:
    case StorageFormat::kZstd: return Decompress(stored, values);
    case StorageFormat::kFloat16: return type == DataType::kFloat32 && Widen<c10::Half>(stored, values);
    case StorageFormat::kBFloat16: return type == DataType::kFloat32 && Widen<c10::BFloat16>(stored, values);
    case StorageFormat::kInt8: return type == DataType::kFloat32 && WidenFromInt8(shape, stored, values);
  }
  return false;
}

}  // namespace egeria::cache

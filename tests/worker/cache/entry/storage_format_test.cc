#include "worker/cache/entry/storage_format.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::cache {
namespace {

using Bytes = std::vector<std::byte>;

constexpr StorageFormat kLossless[] = {StorageFormat::kExact, StorageFormat::kLz4, StorageFormat::kZstd};
constexpr StorageFormat kRounding[] = {StorageFormat::kFloat16, StorageFormat::kBFloat16, StorageFormat::kInt8};

Bytes BytesOf(const std::vector<float>& values) {
  Bytes bytes(values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<float> FloatsOf(const Bytes& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

struct Kept {
  Stored stored;
  Bytes bytes;
  RoundingError error;
};

Kept Keep(StorageFormat format, DataType type, const Bytes& values) {
  Kept kept{.bytes = Bytes(values.size())};
  kept.stored = Store(format, type, {}, values, kept.bytes, &kept.error);
  kept.bytes.resize(kept.stored.bytes);
  return kept;
}

// The floats that come back.
std::vector<float> Back(StorageFormat format, const std::vector<float>& values) {
  const Kept kept = Keep(format, DataType::kFloat32, BytesOf(values));
  Bytes back(values.size() * sizeof(float));
  EXPECT_TRUE(Restore(kept.stored.format, DataType::kFloat32, {}, kept.bytes, back));
  return FloatsOf(back);
}

TEST(StorageFormatTest, LosslessFormatsGiveBackEveryBitOfEveryTypeAndSize) {
  std::mt19937_64 random(1);
  for (const StorageFormat format : kLossless) {
    for (int type = 1; type <= static_cast<int>(DataType::kBool); ++type) {
      for (const size_t count : {0, 1, 2, 3, 7, 15, 16, 17, 127, 1'000, 4'097, 70'001}) {
        for (const uint64_t density : {0, 3, 256}) {  // zeros, a few bytes among zeros, noise: NaNs of any payload
          Bytes values(count * ElementSize(static_cast<DataType>(type)));
          for (std::byte& byte : values) byte = static_cast<std::byte>(random() % 256 < density ? random() : 0);
          const Kept kept = Keep(format, static_cast<DataType>(type), values);
          Bytes back(values.size(), std::byte{1});
          ASSERT_TRUE(Restore(kept.stored.format, static_cast<DataType>(type), {}, kept.bytes, back));
          ASSERT_EQ(back, values) << StorageFormatName(format) << " " << type << " " << count;
        }
      }
    }
  }
}

TEST(StorageFormatTest, LosslessFormatsKeepSignsOfZeroPayloadsOfNaNAndSubnormals) {
  std::vector<float> values = {0.0F,
                               -0.0F,
                               std::bit_cast<float>(0x7fc12345U),
                               std::bit_cast<float>(0xff812345U),
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::denorm_min(),
                               std::numeric_limits<float>::max()};
  while (values.size() < 1'000) values.push_back(values[values.size() % 8]);
  for (const StorageFormat format : kLossless) {
    const std::vector<float> back = Back(format, values);
    EXPECT_EQ(std::memcmp(back.data(), values.data(), values.size() * sizeof(float)), 0) << StorageFormatName(format);
  }
}

TEST(StorageFormatTest, CompressionTakesWhatIsShorterOnly) {
  std::mt19937_64 random(1);
  Bytes noise(10'000);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
  for (const StorageFormat format : {StorageFormat::kLz4, StorageFormat::kZstd}) {
    EXPECT_EQ(Keep(format, DataType::kFloat32, noise).stored.format, StorageFormat::kExact);
    const Kept zeros = Keep(format, DataType::kFloat32, Bytes(10'000));
    EXPECT_EQ(zeros.stored.format, format);
    EXPECT_LT(zeros.stored.bytes, 500);
  }
}

TEST(StorageFormatTest, RoundingIsToTheNearestAndToEven) {
  const std::vector<float> values = {1.0F, 1.0F + 0x1p-11F, 1.0F + 0x1.8p-10F, -65504.0F, 0x1p-25F, -0.0F};
  const std::vector<float> half = Back(StorageFormat::kFloat16, values);
  EXPECT_EQ(half, (std::vector<float>{1.0F, 1.0F, 1.0F + 0x1p-9F, -65504.0F, 0.0F, -0.0F}));
  EXPECT_TRUE(std::signbit(half[5]));
  const std::vector<float> brain = Back(StorageFormat::kBFloat16, {1.0F, 1.0F + 0x1p-8F, 1.0F + 0x1.8p-7F, 1e30F});
  EXPECT_EQ(brain[1], 1.0F);
  EXPECT_EQ(brain[2], 1.0F + 0x1p-6F);
  EXPECT_NEAR(brain[3], 1e30F, 1e28F);
  for (const StorageFormat format : kRounding) {
    std::vector<float> values(40, 1.0F);
    std::ranges::copy(std::vector<float>{std::nanf("1"), INFINITY, -INFINITY}, values.begin());
    const std::vector<float> back = Back(format, values);
    EXPECT_TRUE(std::isnan(back[0]));
    EXPECT_EQ(back[1], INFINITY);
    EXPECT_EQ(back[2], -INFINITY);
  }
}

TEST(StorageFormatTest, NoFiniteValueBecomesInfinite) {
  const Kept half = Keep(StorageFormat::kFloat16, DataType::kFloat32, BytesOf({1.0F, 70'000.0F}));
  EXPECT_EQ(half.stored.format, StorageFormat::kExact);
  EXPECT_EQ(half.error.values(), 0);
  EXPECT_EQ(Back(StorageFormat::kFloat16, {1.1F, 70'000.0F}), (std::vector<float>{1.1F, 70'000.0F}));
  EXPECT_EQ(Back(StorageFormat::kBFloat16, {3.4e38F}), std::vector<float>{3.4e38F});
}

TEST(StorageFormatTest, OnlyFloat32IsRounded) {
  for (const StorageFormat format : kRounding) {
    EXPECT_EQ(Keep(format, DataType::kFloat64, Bytes(80, std::byte{1})).stored.format, StorageFormat::kExact);
    EXPECT_EQ(Keep(format, DataType::kInt32, Bytes(80, std::byte{1})).stored.format, StorageFormat::kExact);
  }
}

TEST(StorageFormatTest, TheErrorOfRoundingIsMeasured) {
  // Differences of 0 and 2^-11, the root mean square of the values about 1.
  std::vector<float> values(2'000, 1.0F);
  for (size_t i = 0; i < values.size(); i += 2) values[i] = 1.0F + 0x1p-11F;
  const Kept kept = Keep(StorageFormat::kFloat16, DataType::kFloat32, BytesOf(values));
  EXPECT_EQ(kept.error.values(), 2'000);
  EXPECT_NEAR(kept.error.largest(), 0x1p-11, 1e-6);
  EXPECT_NEAR(kept.error.root_mean_square(), 0x1p-11 / std::sqrt(2), 1e-6);
  RoundingError both = kept.error;
  both.Add(kept.error);
  EXPECT_EQ(both.values(), 4'000);
  EXPECT_NEAR(both.root_mean_square(), kept.error.root_mean_square(), 1e-12);
  EXPECT_EQ(Keep(StorageFormat::kFloat16, DataType::kFloat32, BytesOf({0, 0})).error.root_mean_square(), 0);
  EXPECT_EQ(Keep(StorageFormat::kLz4, DataType::kFloat32, Bytes(8'000)).error.values(), 0);
}

// Bytes that end where nothing may be read or written, also not by a library that no sanitizer sees into.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t most) : page_(sysconf(_SC_PAGESIZE)), room_((most + page_ - 1) / page_ * page_) {
    void* const mapped = mmap(nullptr, room_ + page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    begin_ = static_cast<std::byte*>(mapped);
    EXPECT_EQ(mprotect(begin_ + room_, page_, PROT_NONE), 0);
  }
  ~GuardedBytes() { munmap(begin_, room_ + page_); }
  std::span<std::byte> Last(size_t bytes) { return {begin_ + room_ - bytes, bytes}; }

 private:
  const size_t page_;
  const size_t room_;
  std::byte* begin_;
};

TEST(StorageFormatTest, DamagedBytesAreRefusedOrGiveOtherValuesAndNothingWorse) {
  std::mt19937_64 random(5);
  std::vector<float> values(20'000);
  for (float& value : values) value = random() % 2 == 0 ? 0.0F : static_cast<float>(random() % 100);
  for (const StorageFormat format :
       {StorageFormat::kLz4, StorageFormat::kZstd, StorageFormat::kFloat16, StorageFormat::kInt8}) {
    const Kept kept = Keep(format, DataType::kFloat32, BytesOf(values));
    ASSERT_EQ(kept.stored.format, format);
    GuardedBytes room(kept.bytes.size());
    GuardedBytes guarded(values.size() * sizeof(float));
    const std::span<std::byte> back = guarded.Last(values.size() * sizeof(float));
    for (int round = 0; round < 5'000; ++round) {
      Bytes damaged = kept.bytes;
      // The head, which says where everything is, as often as all the rest.
      const size_t end = round % 2 == 0 ? 32 : damaged.size();
      for (uint64_t flips = 1 + random() % 8; flips > 0; --flips) {
        damaged[random() % end] ^= std::byte{1} << (random() % 8);
      }
      if (random() % 4 == 0) damaged.resize(random() % damaged.size());
      const std::span<std::byte> stored = room.Last(damaged.size());
      std::copy(damaged.begin(), damaged.end(), stored.begin());
      Restore(format, DataType::kFloat32, {}, stored, back);
    }
    EXPECT_FALSE(Restore(format, DataType::kFloat32, {}, {}, back));
    EXPECT_FALSE(Restore(format, DataType::kFloat32, {}, kept.bytes, back.first(back.size() - 4)));
  }
  Bytes back(8);
  EXPECT_FALSE(Restore(static_cast<StorageFormat>(99), DataType::kFloat32, {}, back, back));
}

TEST(StorageFormatTest, NamesAreThoseOfTheOptions) {
  for (const StorageFormat format : {StorageFormat::kExact, StorageFormat::kLz4, StorageFormat::kZstd,
                                     StorageFormat::kFloat16, StorageFormat::kBFloat16, StorageFormat::kInt8}) {
    EXPECT_EQ(WantedFormatOf(StorageFormatName(format))->format, format);
    EXPECT_FALSE(WantedFormatOf(StorageFormatName(format))->automatic);
  }
  EXPECT_TRUE(WantedFormatOf("auto")->automatic);
  EXPECT_EQ(WantedFormatOf("float16").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(StorageFormatTest, WhatIsRoundedLiesElsewhere) {
  const Fingerprint prefix = {1, 2, 3};
  for (const StorageFormat format : kLossless) EXPECT_EQ(StoredPrefix(prefix, format), prefix);
  EXPECT_NE(StoredPrefix(prefix, StorageFormat::kFloat16), prefix);
  EXPECT_NE(StoredPrefix(prefix, StorageFormat::kBFloat16), prefix);
  EXPECT_NE(StoredPrefix(prefix, StorageFormat::kInt8), prefix);
  EXPECT_NE(StoredPrefix(prefix, StorageFormat::kFloat16), StoredPrefix(prefix, StorageFormat::kBFloat16));
}

}  // namespace
}  // namespace egeria::cache

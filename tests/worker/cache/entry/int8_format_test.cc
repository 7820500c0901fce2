#include "worker/cache/entry/int8_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace egeria::cache {
namespace {

using Shape = std::vector<int64_t>;

struct KeptInt8 {
  std::vector<std::byte> bytes;
  std::vector<float> rounded;
};

KeptInt8 KeepInt8(const Shape& shape, const std::vector<float>& values) {
  KeptInt8 kept{.bytes = std::vector<std::byte>(values.size() * sizeof(float))};
  kept.bytes.resize(StoreInt8(shape, values, kept.bytes, &kept.rounded));
  return kept;
}

std::vector<float> BackInt8(const Shape& shape, const KeptInt8& kept, size_t values) {
  std::vector<float> back(values, 7.0F);
  EXPECT_TRUE(RestoreInt8(shape, kept.bytes, back));
  return back;
}

// Values of which channel c is 10^(c % 5) large.
std::vector<float> Channelled(size_t rows, size_t columns, bool by_row) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(rows * columns);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(random) * std::pow(10.0F, static_cast<float>((by_row ? i / columns : i % columns) % 5));
  }
  return values;
}

TEST(Int8FormatTest, EachChannelHasItsOwnScaleInWhicheverDimensionServesBetter) {
  for (const bool by_row : {true, false}) {
    const std::vector<float> values = Channelled(32, 48, by_row);
    const KeptInt8 kept = KeepInt8({32, 48}, values);
    EXPECT_EQ(kept.bytes.size(), 4 + (by_row ? 32 : 48) * 4 + values.size());
    EXPECT_EQ(BackInt8({32, 48}, kept, values.size()), kept.rounded);
    std::vector<float> largest(by_row ? 32 : 48, 0.0F);
    const auto channel = [&](size_t i) { return by_row ? i / 48 : i % 48; };
    for (size_t i = 0; i < values.size(); ++i) {
      largest[channel(i)] = std::max(largest[channel(i)], std::abs(values[i]));
    }
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_LE(std::abs(kept.rounded[i] - values[i]), largest[channel(i)] / 127 * 0.501F) << i;
    }
  }
  // In c x h x w each place of the first dimension is a channel.
  const std::vector<float> image = Channelled(8, 36, /*by_row=*/true);
  EXPECT_EQ(KeepInt8({8, 6, 6}, image).bytes.size(), 4 + 8 * 4 + image.size());
}

TEST(Int8FormatTest, AChannelWithFewValuesIsNone) {
  const std::vector<float> values = Channelled(8, 12, /*by_row=*/false);
  const KeptInt8 kept = KeepInt8({8, 12}, values);  // neither 12 nor 8 values are worth a scale
  EXPECT_EQ(kept.bytes.size(), 4 + 4 + values.size());
  EXPECT_EQ(KeepInt8({96}, values).bytes.size(), 4 + 4 + values.size());
}

TEST(Int8FormatTest, WhatWasRoundedOnceIsRoundedToItself) {
  for (const bool by_row : {true, false}) {
    const std::vector<float> values = Channelled(64, 64, by_row);
    const KeptInt8 once = KeepInt8({64, 64}, values);
    EXPECT_NE(once.rounded, values);
    EXPECT_EQ(KeepInt8({64, 64}, once.rounded).rounded, once.rounded);
  }
  std::mt19937 random(2);
  for (int round = 0; round < 2'000; ++round) {
    std::vector<float> values(20);
    for (float& value : values) value = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 90) - 70);
    const KeptInt8 once = KeepInt8({20}, values);
    ASSERT_EQ(KeepInt8({20}, once.rounded).rounded, once.rounded);
  }
}

TEST(Int8FormatTest, ZerosAndTinyValuesAreZerosAndWhatIsNoSuchNumberIsRefused) {
  std::vector<float> values(64, 0.0F);
  EXPECT_EQ(BackInt8({4, 16}, KeepInt8({4, 16}, values), 64), values);
  values[5] = 1e-40F;
  EXPECT_EQ(BackInt8({4, 16}, KeepInt8({4, 16}, values), 64), std::vector<float>(64, 0.0F));
  for (const float value : {std::nanf(""), INFINITY, -INFINITY, 3e38F}) {
    values[5] = value;
    EXPECT_TRUE(KeepInt8({4, 16}, values).bytes.empty()) << value;
  }
  EXPECT_TRUE(KeepInt8({0, 3}, {}).bytes.empty());
  EXPECT_TRUE(KeepInt8({1}, {1.0F}).bytes.empty()) << "it would be longer";
}

TEST(Int8FormatTest, BytesOfAnotherTensorAreRefused) {
  const std::vector<float> values = Channelled(32, 48, /*by_row=*/true);
  KeptInt8 kept = KeepInt8({32, 48}, values);
  std::vector<float> back(values.size());
  EXPECT_FALSE(RestoreInt8(Shape{48, 32}, kept.bytes, back));
  EXPECT_FALSE(RestoreInt8(Shape{32, 48}, std::span(kept.bytes).first(kept.bytes.size() - 1), back));
  EXPECT_FALSE(RestoreInt8(Shape{32, 48}, {}, back));
  EXPECT_FALSE(RestoreInt8(Shape{0, 3}, kept.bytes, std::span(back).first(0)));
  kept.bytes[0] = std::byte{3};
  EXPECT_FALSE(RestoreInt8(Shape{32, 48}, kept.bytes, back));
}

}  // namespace
}  // namespace egeria::cache

#include "worker/cache/entry/entry.h"

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::cache {
namespace {

using ::testing::ElementsAre;

const JobId kJob("0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11");

class EntryTest : public ::testing::Test {
 protected:
  EntryTest() : floats_(24), numbers_(3) {
    std::iota(floats_.begin(), floats_.end(), 0.5F);
    numbers_ = {7, 8, 9};
    tensors_ = {{DataType::kFloat32, {2, 3, 4}, reinterpret_cast<const std::byte*>(floats_.data())},
                {DataType::kInt64, {3}, reinterpret_cast<const std::byte*>(numbers_.data())},
                {DataType::kBool, {0, 4}, nullptr},
                {DataType::kFloat32, {}, reinterpret_cast<const std::byte*>(floats_.data() + 5)}};
    entry_ = WriteEntry(key_, 42, tensors_);
  }

  bool Read(const EntryKey& key, size_t most_bytes = 10'000) { return ReadEntry(key, entry_, most_bytes, &found_); }

  const EntryKey key_{kJob, {1, 2, 3}, 17};
  std::vector<float> floats_;
  std::vector<int64_t> numbers_;
  std::vector<EntryTensor> tensors_;
  std::vector<std::byte> entry_;
  Entry found_;
};

TEST_F(EntryTest, GivesBackWhatWasWritten) {
  ASSERT_TRUE(Read(key_));
  EXPECT_EQ(found_.input_hash, 42);
  ASSERT_EQ(found_.tensors.size(), 4);
  EXPECT_EQ(found_.tensors[0].dtype, DataType::kFloat32);
  EXPECT_THAT(found_.tensors[0].shape, ElementsAre(2, 3, 4));
  EXPECT_EQ(std::memcmp(found_.tensors[0].data, floats_.data(), 96), 0);
  EXPECT_EQ(std::memcmp(found_.tensors[1].data, numbers_.data(), 24), 0);
  EXPECT_THAT(found_.tensors[2].shape, ElementsAre(0, 4));
  EXPECT_TRUE(found_.tensors[3].shape.empty());
  EXPECT_EQ(std::memcmp(found_.tensors[3].data, &floats_[5], 4), 0);
  for (const EntryTensor& tensor : found_.tensors) {
    EXPECT_EQ((tensor.data - entry_.data()) % 64, 0) << "unaligned";
  }
}

TEST_F(EntryTest, HasTheSizeThatIsSaid) { EXPECT_EQ(entry_.size(), EntrySize(tensors_)); }

TEST_F(EntryTest, LongerThanExpectedIsRefused) {
  EXPECT_TRUE(Read(key_, entry_.size()));
  EXPECT_FALSE(Read(key_, entry_.size() - 1));
}

TEST_F(EntryTest, AnotherVersionIsRefused) {
  entry_[3] = std::byte{'1'};
  EXPECT_FALSE(Read(key_));
}

TEST_F(EntryTest, AnEntryOfAnotherKeyIsCorrupt) {
  EXPECT_FALSE(Read({JobId("1b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11"), key_.prefix, 17}));
  EXPECT_FALSE(Read({kJob, {1, 2, 4}, 17}));
  EXPECT_FALSE(Read({kJob, key_.prefix, 18}));
}

TEST_F(EntryTest, NoSingleFlippedBitIsAccepted) {
  for (size_t bit = 0; bit < 8 * entry_.size(); ++bit) {
    entry_[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(Read(key_)) << bit;
    entry_[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_TRUE(Read(key_));
}

TEST_F(EntryTest, NoTruncatedOrLongerEntryIsAccepted) {
  const std::vector<std::byte> whole = entry_;
  for (size_t length = 0; length < whole.size(); ++length) {
    entry_.assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_FALSE(Read(key_)) << length;
  }
  entry_ = whole;
  entry_.resize(whole.size() + 64);
  EXPECT_FALSE(Read(key_));
}

TEST_F(EntryTest, RandomBytesAreRefused) {
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    entry_.resize(random() % 300);
    for (std::byte& byte : entry_) byte = static_cast<std::byte>(random());
    if (entry_.size() >= 4) std::memcpy(entry_.data(), "EGA2", 4);
    EXPECT_FALSE(Read(key_));
  }
}

// The same in every format, of a tensor that can be compressed and two that cannot.
class EntryFormatTest : public ::testing::TestWithParam<StorageFormat> {
 protected:
  EntryFormatTest() : smooth_(1'001), noise_(333) {
    for (size_t i = 0; i < smooth_.size(); ++i) smooth_[i] = i % 3 == 0 ? 0.0F : 1.0F + static_cast<float>(i % 16) / 16;
    for (uint64_t& value : noise_) value = random_();
    tensors_ = {{DataType::kFloat32, {7, 11, 13}, reinterpret_cast<const std::byte*>(smooth_.data())},
                {DataType::kInt64, {333}, reinterpret_cast<const std::byte*>(noise_.data())},
                {DataType::kBool, {0, 4}, nullptr}};
    entry_ = WriteEntry(key_, 42, tensors_, GetParam());
  }

  bool Read() { return ReadEntry(key_, entry_, EntrySize(tensors_), &found_); }
  bool IsAsWritten() const {
    return std::memcmp(found_.tensors[0].data, smooth_.data(), sizeof(float) * smooth_.size()) == 0 &&
           std::memcmp(found_.tensors[1].data, noise_.data(), sizeof(uint64_t) * noise_.size()) == 0;
  }

  const EntryKey key_{kJob, {1, 2, 3}, 17};
  std::mt19937_64 random_{7};
  std::vector<float> smooth_;  // no format rounds these values
  std::vector<uint64_t> noise_;
  std::vector<EntryTensor> tensors_;
  std::vector<std::byte> entry_;
  Entry found_;
};

TEST_P(EntryFormatTest, GivesBackWhatWasWritten) {
  for (int again = 0; again < 2; ++again) {
    ASSERT_TRUE(Read());
    ASSERT_EQ(found_.tensors.size(), 3);
    EXPECT_THAT(found_.tensors[0].shape, ElementsAre(7, 11, 13));
    EXPECT_TRUE(IsAsWritten());
  }
  EXPECT_LE(entry_.size(), EntrySize(tensors_));
  if (GetParam() != StorageFormat::kExact) {
    EXPECT_LT(entry_.size(), EntrySize(tensors_) - 1'500);
  }
}

TEST_P(EntryFormatTest, NoFlippedBitsAreAccepted) {
  const std::vector<std::byte> whole = entry_;
  for (int round = 0; round < 5'000; ++round) {
    entry_ = whole;
    for (uint64_t flips = 1 + random_() % 4; flips > 0; --flips) {
      entry_[random_() % entry_.size()] ^= std::byte{1} << (random_() % 8);
    }
    EXPECT_TRUE(entry_ == whole || !Read()) << round;
  }
}

TEST_P(EntryFormatTest, NoTruncatedEntryIsAccepted) {
  while (!entry_.empty()) {
    entry_.pop_back();
    EXPECT_FALSE(Read()) << entry_.size();
  }
}

TEST_P(EntryFormatTest, NoMoreMemoryIsTakenThanExpected) {
  const std::vector<float> zeros(1 << 20);  // some formats make these very short
  const EntryTensor tensor{DataType::kFloat32, {1 << 20}, reinterpret_cast<const std::byte*>(zeros.data())};
  entry_ = WriteEntry(key_, 42, std::span(&tensor, 1), GetParam());
  EXPECT_FALSE(ReadEntry(key_, entry_, 4 << 20, &found_));
  EXPECT_TRUE(found_.restored.empty());
  EXPECT_TRUE(ReadEntry(key_, entry_, EntrySize(std::span(&tensor, 1)), &found_));
}

INSTANTIATE_TEST_SUITE_P(Formats, EntryFormatTest,
                         ::testing::Values(StorageFormat::kExact, StorageFormat::kLz4, StorageFormat::kZstd,
                                           StorageFormat::kFloat16, StorageFormat::kBFloat16),
                         [](const auto& format) { return StorageFormatName(format.param); });

}  // namespace
}  // namespace egeria::cache

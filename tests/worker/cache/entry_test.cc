#include "worker/cache/entry.h"

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
    entry_.resize(EntrySize(tensors_));
    WriteEntry(key_, 42, tensors_, entry_);
  }

  bool Read(const EntryKey& key) { return ReadEntry(key, entry_, &found_); }

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
    if (entry_.size() >= 4) std::memcpy(entry_.data(), "EGA1", 4);
    EXPECT_FALSE(Read(key_));
  }
}

}  // namespace
}  // namespace egeria::cache

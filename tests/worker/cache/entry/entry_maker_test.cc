#include "worker/cache/entry/entry_maker.h"

#include <cstring>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace egeria::cache {
namespace {

const JobId kMakersJob("0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11");
constexpr Fingerprint kMakersPrefix = {1};
constexpr Fingerprint kOther = {2};
constexpr WantedFormat kAutomatic{.automatic = true};

// An entry of which zstd takes a little, or nearly all.
PendingEntry Pending(bool compressible, const Fingerprint& prefix = kMakersPrefix) {
  std::vector<uint32_t> values(2'000);
  uint32_t noise = 1;
  for (uint32_t& value : values) value = compressible ? 0x3f800000 : noise = noise * 1'664'525 + 1'013'904'223;
  const EntryTensor tensor{DataType::kFloat32, {2'000}, reinterpret_cast<const std::byte*>(values.data())};
  return {prefix, 7, 8, std::span(&tensor, 1)};
}

bool Compresses(EntryMaker* maker, bool compressible, const Fingerprint& prefix = kMakersPrefix) {
  PendingEntry entry = Pending(compressible, prefix);
  const size_t exact = entry.exact_bytes;
  const std::vector<std::byte> made = maker->Make(std::move(entry));
  Entry back;
  EXPECT_TRUE(ReadEntry({kMakersJob, prefix, 7}, made, exact, &back));
  const PendingEntry expected = Pending(compressible, prefix);
  EXPECT_EQ(std::memcmp(back.tensors[0].data, expected.tensors[0].data, 8'000), 0);
  return made.size() < exact;
}

TEST(EntryMakerTest, ExactEntriesAreCompressedOnceTheQuotaIsHalfFullAndThatPays) {
  EntryMaker maker(kMakersJob, kAutomatic);
  EXPECT_FALSE(Compresses(&maker, true));
  maker.NoteFullness(0.4);
  EXPECT_FALSE(Compresses(&maker, true));
  maker.NoteFullness(0.6);
  for (int64_t i = 0; i < 2 * EntryMaker::kTrial; ++i) EXPECT_TRUE(Compresses(&maker, true));
  EXPECT_LT(maker.report().bytes, maker.report().exact_bytes / 2);
  maker.NoteFullness(0.1);
  EXPECT_FALSE(Compresses(&maker, true)) << "there is room again";
}

TEST(EntryMakerTest, WhatHardlyShrinksStaysAsItIsAfterATrialOfEachPrefix) {
  EntryMaker maker(kMakersJob, kAutomatic);
  maker.NoteFullness(0.6);
  for (int64_t i = 0; i < EntryMaker::kTrial; ++i) Compresses(&maker, false);
  EXPECT_EQ(maker.report().entries, EntryMaker::kTrial);
  EXPECT_FALSE(Compresses(&maker, true)) << "nobody looks any more";
  EXPECT_EQ(maker.report().entries, EntryMaker::kTrial);
  for (int64_t i = 0; i < 2 * EntryMaker::kTrial; ++i) EXPECT_TRUE(Compresses(&maker, true, kOther));
}

TEST(EntryMakerTest, WhatIsAskedForIsDoneWhateverTheQuota) {
  EntryMaker zstd(kMakersJob, {.format = StorageFormat::kZstd});
  EXPECT_TRUE(Compresses(&zstd, true));
  EntryMaker exact(kMakersJob, {});
  exact.NoteFullness(1);
  EXPECT_FALSE(Compresses(&exact, true));
}

}  // namespace
}  // namespace egeria::cache

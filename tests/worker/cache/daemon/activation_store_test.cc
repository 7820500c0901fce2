#include "worker/cache/daemon/activation_store.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace egeria::cache {
namespace {

using ::testing::HasSubstr;
using Outcome = ActivationStore::Outcome;

const JobId kJob("0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11");
const JobId kOther("1b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d22");
constexpr Fingerprint kFirst = {1};
constexpr Fingerprint kSecond = {2};

class ActivationStoreTest : public ::testing::Test {
 protected:
  ActivationStoreTest() {
    options_.folder = folder_ / "store";
    options_.free_bytes = 0;
    options_.write_buffer_bytes = 1 << 20;
    options_.memory_bytes = 0;  // memory_tier_test.cc is about that
    options_.idle_after = absl::ZeroDuration();
  }

  void Open() {
    store_.reset();
    auto store = ActivationStore::Open(options_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  static std::string Entry(uint64_t sample, size_t length = 10'000) {
    std::string entry = std::to_string(sample) + ":";
    entry.resize(length, static_cast<char>('a' + sample % 26));
    return entry;
  }
  std::optional<std::string> Get(const JobId& job, const Fingerprint& prefix, uint64_t sample) {
    std::string memory(20'000, '#');
    const size_t length = store_->Get(job, prefix, sample, std::as_writable_bytes(std::span(memory)));
    if (length == 0) return std::nullopt;
    EXPECT_EQ(memory.find_first_not_of('#', length), std::string::npos) << "more than the entry was written";
    return memory.substr(0, length);
  }
  // As often as it takes where the disk is behind.
  Outcome Put(const JobId& job, const Fingerprint& prefix, uint64_t sample, const std::string& entry) {
    Outcome outcome = store_->Put(job, prefix, sample, entry);
    for (int i = 0; i < 2'000 && outcome == Outcome::kBusy; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      outcome = store_->Put(job, prefix, sample, entry);
    }
    return outcome;
  }
  int64_t BytesOnDisk() const {
    int64_t bytes = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(options_.folder)) {
      std::error_code gone;
      const auto size = file.is_regular_file(gone) ? file.file_size(gone) : 0;
      if (!gone) bytes += static_cast<int64_t>(size);
    }
    return bytes;
  }

  testing::TempFolder folder_;
  ActivationStore::Options options_;
  std::unique_ptr<ActivationStore> store_;
};

TEST_F(ActivationStoreTest, KeepsEntriesBySampleAndPrefixAndJob) {
  Open();
  store_->Attach(kJob, 0);
  store_->Attach(kOther, 0);
  EXPECT_EQ(Put(kJob, kFirst, 7, Entry(7)), Outcome::kStored);
  EXPECT_EQ(Put(kJob, kFirst, 7, Entry(8)), Outcome::kPresent);
  EXPECT_EQ(Get(kJob, kFirst, 7), Entry(7));
  EXPECT_EQ(Get(kJob, kFirst, 8), std::nullopt);
  EXPECT_EQ(Get(kJob, kSecond, 7), std::nullopt);
  EXPECT_EQ(Get(kOther, kFirst, 7), std::nullopt);
  EXPECT_EQ(Put(kOther, kFirst, 7, Entry(9)), Outcome::kStored);
  EXPECT_EQ(Get(kOther, kFirst, 7), Entry(9));
  EXPECT_EQ(store_->totals().entries, 2);
}

TEST_F(ActivationStoreTest, FindsEntriesAgainAfterAnOrderlyEnd) {
  Open();
  store_->Attach(kJob, 0);
  for (uint64_t sample = 0; sample < 50; ++sample) Put(kJob, kFirst, sample, Entry(sample, 100 * sample + 1));
  const ActivationStore::Totals before = store_->totals();
  Open();
  EXPECT_EQ(store_->totals().entries, before.entries);
  EXPECT_EQ(store_->totals().bytes, before.bytes);
  for (uint64_t sample = 0; sample < 50; ++sample)
    EXPECT_EQ(Get(kJob, kFirst, sample), Entry(sample, 100 * sample + 1));
}

TEST_F(ActivationStoreTest, ForgottenPrefixesGiveTheirSpaceBack) {
  Open();
  store_->Attach(kJob, 0);
  for (uint64_t sample = 0; sample < 500; ++sample) {
    Put(kJob, kFirst, sample, Entry(sample));
    Put(kJob, kSecond, sample, Entry(sample));
  }
  Open();  // all is on disk now
  EXPECT_GT(BytesOnDisk(), 10'000'000);
  EXPECT_GT(store_->DropPrefix(kJob, kFirst), 5'000'000);
  EXPECT_EQ(Get(kJob, kFirst, 3), std::nullopt);
  EXPECT_EQ(Get(kJob, kSecond, 3), Entry(3));
  Open();
  EXPECT_LT(BytesOnDisk(), 6'000'000);
  EXPECT_GT(store_->DropPrefix(kJob, kSecond), 5'000'000);
  EXPECT_EQ(store_->totals().entries, 0);
  Open();
  EXPECT_LT(BytesOnDisk(), 1'000'000);
}

TEST_F(ActivationStoreTest, AFourthOfTheSamplesFitsIntoAFourthOfTheirSizeInAnyOrder) {
  options_.quota_bytes = 2'560'000;
  Open();
  store_->Attach(kJob, 0);
  for (int epoch = 0; epoch < 3; ++epoch) {
    int hits = 0;
    for (uint64_t i = 0; i < 1'000; ++i) {
      const uint64_t sample = i * 387 % 1'000;
      if (Get(kJob, kFirst, sample) == Entry(sample)) {
        ++hits;
      } else {
        EXPECT_NE(Put(kJob, kFirst, sample, Entry(sample)), Outcome::kFailed);
      }
      EXPECT_LE(store_->totals().bytes, options_.quota_bytes);
    }
    if (epoch > 0) {
      EXPECT_NEAR(hits, 250, 25);
    }
  }
  Open();
  EXPECT_LT(BytesOnDisk(), options_.quota_bytes * 11 / 10);
}

TEST_F(ActivationStoreTest, OtherPrefixesThenIdleJobsMakeRoomForNewEntries) {
  options_.quota_bytes = 1'000'000;
  Open();
  store_->Attach(kJob, 0);
  store_->Attach(kOther, 0);
  for (uint64_t sample = 0; sample < 40; ++sample) {
    Put(kOther, kFirst, sample, Entry(sample));
    Put(kJob, kFirst, sample, Entry(sample));
  }
  // The other prefix of the job goes first.
  for (uint64_t sample = 0; sample < 40; ++sample) {
    EXPECT_EQ(Put(kJob, kSecond, sample, Entry(sample)), Outcome::kStored);
  }
  EXPECT_EQ(Get(kJob, kFirst, 0), std::nullopt);
  EXPECT_EQ(Get(kOther, kFirst, 0), Entry(0));
  // An attached job is not evicted.
  Outcome last = Outcome::kStored;
  for (uint64_t sample = 40; sample < 90; ++sample) last = Put(kJob, kSecond, sample, Entry(sample));
  EXPECT_EQ(last, Outcome::kOverQuota);
  EXPECT_EQ(Get(kOther, kFirst, 0), Entry(0));
  // One that has ended is.
  store_->Detach(kOther);
  EXPECT_EQ(Put(kJob, kSecond, 89, Entry(89)), Outcome::kStored);
  EXPECT_EQ(Get(kOther, kFirst, 0), std::nullopt);
  EXPECT_GT(store_->totals().evicted_bytes, 700'000);
}

TEST_F(ActivationStoreTest, PrefixesThatRanksUseSideBySideDoNotEvictEachOther) {
  options_.quota_bytes = 1'000'000;
  options_.idle_after = absl::Hours(1);
  Open();
  store_->Attach(kJob, 0);
  for (uint64_t sample = 0; sample < 40; ++sample) Put(kJob, kFirst, sample, Entry(sample));
  Outcome last = Outcome::kStored;
  for (uint64_t sample = 0; sample < 60; ++sample) last = Put(kJob, kSecond, sample, Entry(sample));
  EXPECT_EQ(last, Outcome::kOverQuota);
  EXPECT_EQ(Get(kJob, kFirst, 0), Entry(0));
  EXPECT_EQ(Get(kJob, kSecond, 0), Entry(0));
  EXPECT_EQ(store_->totals().evicted_bytes, 0);
  // Nobody uses the entries that a daemon finds in its folder.
  Open();
  store_->Attach(kJob, 0);
  for (uint64_t sample = 60; sample < 80; ++sample) {
    EXPECT_EQ(Put(kJob, kSecond, sample, Entry(sample)), Outcome::kStored);
  }
  EXPECT_EQ(Get(kJob, kFirst, 0), std::nullopt);
}

TEST_F(ActivationStoreTest, APutWhoseSessionHasEndedEvictsNothingOfItsOwnJob) {
  options_.quota_bytes = 1'000'000;
  Open();
  store_->Attach(kJob, 0);
  uint64_t sample = 0;
  while (Put(kJob, kFirst, sample, Entry(sample)) == Outcome::kStored) ++sample;
  store_->Detach(kJob);
  EXPECT_EQ(Put(kJob, kFirst, sample, Entry(sample)), Outcome::kOverQuota);
  EXPECT_EQ(Get(kJob, kFirst, 0), Entry(0));
}

TEST_F(ActivationStoreTest, TheJobThatEndedLongestAgoMakesRoomFirst) {
  const JobId third("2b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d33");
  options_.quota_bytes = 1'000'000;
  Open();
  store_->Attach(kJob, 0);
  store_->Attach(kOther, 0);
  for (uint64_t sample = 0; sample < 40; ++sample) {
    Put(kJob, kFirst, sample, Entry(sample));
    Put(kOther, kFirst, sample, Entry(sample));
  }
  store_->Detach(kOther);
  store_->Detach(kJob);
  store_->Attach(third, 0);
  for (uint64_t sample = 0; sample < 20; ++sample) Put(third, kFirst, sample, Entry(sample));
  EXPECT_EQ(Get(kOther, kFirst, 0), std::nullopt);
  EXPECT_EQ(Get(kJob, kFirst, 0), Entry(0));
}

TEST_F(ActivationStoreTest, PrefixesThatAreDroppedWhileTheyAreWrittenDoNotEndTheStore) {
  Open();
  store_->Attach(kJob, 0);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (uint64_t sample = 0; !done; ++sample) store_->Put(kJob, kFirst, sample, Entry(sample, 100));
  });
  for (int i = 0; i < 2'000; ++i) store_->DropPrefix(kJob, kFirst);
  done = true;
  writer.join();
  EXPECT_EQ(Put(kJob, kSecond, 1, Entry(1)), Outcome::kStored);
  EXPECT_EQ(Get(kJob, kSecond, 1), Entry(1));
}

TEST_F(ActivationStoreTest, WhatIsDiscardedWhileItIsWrittenIsThereOrNotAsItIsTold) {
  Open();
  store_->Attach(kJob, 0);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    while (!done) store_->Put(kJob, kFirst, 1, Entry(1, 100));
  });
  for (int i = 0; i < 10'000; ++i) store_->Discard(kJob, kFirst, 1);
  done = true;
  writer.join();
  if (Put(kJob, kFirst, 1, Entry(1, 100)) == Outcome::kPresent) {
    EXPECT_EQ(Get(kJob, kFirst, 1), Entry(1, 100));
  }
}

TEST_F(ActivationStoreTest, BeyondTheSoftQuotaNothingIdleStays) {
  options_.quota_bytes = 2'000'000;
  options_.soft_quota_bytes = 1'000'000;
  Open();
  store_->Attach(kOther, 0);
  for (uint64_t sample = 0; sample < 60; ++sample) Put(kOther, kFirst, sample, Entry(sample));
  store_->Attach(kJob, 0);
  for (uint64_t sample = 0; sample < 60; ++sample)
    EXPECT_EQ(Put(kJob, kFirst, sample, Entry(sample)), Outcome::kStored);
  EXPECT_EQ(Get(kOther, kFirst, 0), Entry(0)) << "it is attached";
  store_->Detach(kOther);
  EXPECT_EQ(Put(kJob, kFirst, 60, Entry(60)), Outcome::kStored);
  EXPECT_EQ(Get(kOther, kFirst, 0), std::nullopt);
  // A job that writes may fill the rest, but keeps nothing that it does not need there.
  uint64_t sample = 61;
  while (Put(kJob, kFirst, sample, Entry(sample)) == Outcome::kStored) ++sample;
  EXPECT_GT(store_->totals().bytes, 1'700'000);
  EXPECT_LE(store_->totals().bytes, 2'000'000);
  EXPECT_EQ(Put(kJob, kSecond, 0, Entry(0)), Outcome::kStored);
  EXPECT_EQ(store_->totals().entries, 1);
}

TEST_F(ActivationStoreTest, WhatWasKeptUnderALargerQuotaIsTrimmed) {
  options_.quota_bytes = 2'000'000;
  Open();
  store_->Attach(kJob, 0);
  store_->Attach(kOther, 0);
  for (uint64_t sample = 0; sample < 40; ++sample) Put(kOther, kFirst, sample, Entry(sample));
  for (uint64_t sample = 0; sample < 40; ++sample) Put(kJob, kFirst, sample, Entry(sample));
  for (uint64_t sample = 0; sample < 40; ++sample) Put(kJob, kSecond, sample, Entry(sample));
  EXPECT_NE(Get(kJob, kFirst, 0), std::nullopt);  // so that it is the other one that was not used for longest
  store_->Attach(kJob, 500'000);
  EXPECT_EQ(Get(kJob, kSecond, 0), std::nullopt);
  EXPECT_EQ(Get(kJob, kFirst, 0), Entry(0));
  EXPECT_EQ(Get(kOther, kFirst, 0), Entry(0)) << "another job's";
  options_.quota_bytes = 500'000;
  Open();
  EXPECT_EQ(store_->totals().entries, 40);
  EXPECT_LE(store_->totals().bytes, 500'000);
}

TEST_F(ActivationStoreTest, WhatIsIdleMakesRoomOnADiskThatHasToKeepMore) {
  Open();
  store_->Attach(kOther, 0);
  Put(kOther, kFirst, 1, Entry(1));
  store_->Attach(kJob, 0);
  Put(kJob, kFirst, 1, Entry(1));
  Put(kJob, kSecond, 1, Entry(1));
  options_.free_bytes = int64_t{1} << 60;
  Open();
  store_->Attach(kJob, 0);
  EXPECT_EQ(store_->totals().entries, 3);
  EXPECT_EQ(Put(kJob, kSecond, 2, Entry(2)), Outcome::kNoSpace);
  EXPECT_EQ(Get(kJob, kFirst, 1), std::nullopt) << "a prefix that is past";
  EXPECT_EQ(Get(kOther, kFirst, 1), Entry(1));
  EXPECT_EQ(Put(kJob, kSecond, 2, Entry(2)), Outcome::kNoSpace);
  EXPECT_EQ(Get(kOther, kFirst, 1), std::nullopt) << "a job that does not run";
  EXPECT_EQ(Put(kJob, kSecond, 2, Entry(2)), Outcome::kNoSpace);
  EXPECT_EQ(Get(kJob, kSecond, 1), Entry(1));
}

TEST_F(ActivationStoreTest, AJobsOwnQuotaIsTheSmallestOfThree) {
  options_.quota_bytes = 1'000'000;
  options_.namespace_quota_bytes = 300'000;
  Open();
  EXPECT_EQ(store_->Attach(kJob, 0), 300'000);
  EXPECT_EQ(store_->Attach(kJob, 200'000), 200'000);
  EXPECT_EQ(store_->Attach(kJob, 2'000'000), 300'000);
}

TEST_F(ActivationStoreTest, AJobThatIsAtItsQuotaStopsAndOthersGoOn) {
  options_.quota_bytes = 2'000'000;
  options_.namespace_quota_bytes = 300'000;
  Open();
  store_->Attach(kJob, 0);
  store_->Attach(kOther, 100'000);
  int stored = 0, of_other = 0;
  for (uint64_t sample = 0; sample < 100; ++sample) {
    stored += Put(kJob, kFirst, sample, Entry(sample)) == Outcome::kStored;
  }
  EXPECT_EQ(Put(kJob, kFirst, 100, Entry(100)), Outcome::kOverQuota);
  for (uint64_t sample = 0; sample < 100; ++sample) {
    of_other += Put(kOther, kFirst, sample, Entry(sample)) == Outcome::kStored;
  }
  EXPECT_NEAR(stored, 30, 1);
  EXPECT_NEAR(of_other, 10, 1);
  EXPECT_LE(store_->totals().bytes, 400'000);
  EXPECT_EQ(Get(kJob, kFirst, 0), Entry(0)) << "one job's entries make no room for another's";
  EXPECT_EQ(Get(kOther, kFirst, 0), Entry(0));
}

TEST_F(ActivationStoreTest, NothingIsStoredWhereTheDiskHasToKeepMore) {
  options_.free_bytes = int64_t{1} << 60;
  Open();
  store_->Attach(kJob, 0);
  EXPECT_EQ(Put(kJob, kFirst, 1, Entry(1)), Outcome::kNoSpace);
  EXPECT_EQ(store_->totals().bytes, 0);
}

TEST_F(ActivationStoreTest, ASecondDaemonOnTheFolderIsTold) {
  Open();
  const auto second = ActivationStore::Open(options_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("[STORE_IN_USE]"));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--folder another one"));
}

TEST_F(ActivationStoreTest, AFolderThatCannotBeReadIsBegunAnewAndForeignFilesStay) {
  Open();
  store_->Attach(kJob, 0);
  for (uint64_t sample = 0; sample < 300; ++sample) Put(kJob, kFirst, sample, Entry(sample));
  store_.reset();
  std::ofstream(options_.folder + "/holiday.jpg") << "mine";
  for (const auto& file : std::filesystem::directory_iterator(options_.folder)) {
    const std::string name = file.path().filename();
    if (name.rfind("MANIFEST", 0) == 0) std::filesystem::resize_file(file.path(), 10);
  }
  Open();
  EXPECT_EQ(store_->totals().entries, 0);
  store_->Attach(kJob, 0);
  EXPECT_EQ(Put(kJob, kFirst, 1, Entry(1)), Outcome::kStored);
  EXPECT_TRUE(std::filesystem::exists(options_.folder + "/holiday.jpg"));
}

// Its name, or the text of a failure, is not to be taken for a lock that somebody holds.
TEST_F(ActivationStoreTest, AFolderWithALockInItsNameIsBegunAnewAsAnyOther) {
  options_.folder = folder_ / "block/store";
  std::filesystem::create_directories(options_.folder);
  Open();
  store_->Attach(kJob, 0);
  Put(kJob, kFirst, 1, Entry(1));
  store_.reset();
  std::ofstream(options_.folder + "/CURRENT") << "MANIFEST-999999\n";
  Open();
  EXPECT_EQ(store_->totals().entries, 0);
}

TEST_F(ActivationStoreTest, KeepsTheListsOfADamagedStoreAndSaysThatFilesHaveVanished) {
  for (const char* list : {"CURRENT", "MANIFEST"}) {
    Open();
    store_->Attach(kJob, 0);
    Put(kJob, kFirst, 1, Entry(1));
    store_.reset();
    for (const auto& file : std::filesystem::directory_iterator(options_.folder)) {
      const std::string name = file.path().filename().string();
      if (name == "CURRENT" && name == list) std::filesystem::remove(file.path());
      if (name.starts_with("MANIFEST") && std::string(list) == "MANIFEST")
        std::filesystem::resize_file(file.path(), 20);
    }
    Open();
    EXPECT_EQ(store_->totals().entries, 0) << list;
    EXPECT_FALSE(std::filesystem::is_empty(options_.folder + "/damaged")) << list;
    EXPECT_TRUE(store_->Trouble().ok()) << store_->Trouble();
  }
  std::filesystem::remove_all(options_.folder);
  EXPECT_THAT(std::string(store_->Trouble().message()), ::testing::HasSubstr("vanished"));
}

class ActivationStoreDamageTest : public ActivationStoreTest, public ::testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(ReadBefore, ActivationStoreDamageTest, ::testing::Bool());

TEST_P(ActivationStoreDamageTest, TruncatedFilesOfEntriesGiveMissesOnly) {
  Open();
  store_->Attach(kJob, 0);
  for (uint64_t sample = 0; sample < 300; ++sample) Put(kJob, kFirst, sample, Entry(sample));
  Open();
  for (uint64_t sample = 0; GetParam() && sample < 300; ++sample) EXPECT_TRUE(Get(kJob, kFirst, sample));
  for (const auto& file : std::filesystem::directory_iterator(options_.folder)) {
    if (file.path().extension() != ".blob") continue;
    std::filesystem::resize_file(file.path(), file.file_size() / 2);
    break;  // there are some more
  }
  int found = 0;
  for (uint64_t sample = 0; sample < 300; ++sample) {
    const auto entry = Get(kJob, kFirst, sample);
    if (!entry) continue;
    EXPECT_EQ(*entry, Entry(sample));
    ++found;
  }
  EXPECT_GT(found, 50);
  EXPECT_LT(found, 300);
  EXPECT_EQ(store_->totals().entries, found) << "what cannot be read is forgotten";
}

TEST_F(ActivationStoreTest, WhatIsWrittenAnewIsReadFromItsNewPlace) {
  Open();
  store_->Attach(kJob, 0);
  Put(kJob, kFirst, 1, Entry(1));
  Open();  // it lies in a file
  store_->Attach(kJob, 0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Get(kJob, kFirst, 1), Entry(1));
  store_->Discard(kJob, kFirst, 1);
  EXPECT_EQ(Get(kJob, kFirst, 1), std::nullopt);
  Put(kJob, kFirst, 1, Entry(2));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Get(kJob, kFirst, 1), Entry(2));
  store_->DropPrefix(kJob, kFirst);
  EXPECT_EQ(Get(kJob, kFirst, 1), std::nullopt);
}

TEST_F(ActivationStoreTest, ReadsMoreFilesThanItMayHaveOpen) {
  options_.write_buffer_bytes = 64 << 10;
  Open();
  store_->Attach(kJob, 0);
  constexpr uint64_t kSamples = 4'000;
  for (uint64_t sample = 0; sample < kSamples; ++sample) {
    ASSERT_EQ(Put(kJob, kFirst, sample, Entry(sample)), Outcome::kStored);
  }
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  store_.reset();
  int64_t blob_files = 0;
  for (const auto& file : std::filesystem::directory_iterator(options_.folder)) {
    blob_files += file.path().extension() == ".blob" ? 1 : 0;
  }
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(open_files() + 110);
  ASSERT_GT(blob_files, 2 * 110);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  Open();
  uint64_t found = 0;
  for (uint64_t sample = 0; sample < kSamples; ++sample) found += Get(kJob, kFirst, sample) == Entry(sample) ? 1 : 0;
  EXPECT_EQ(found, kSamples);
  EXPECT_EQ(store_->totals().failures, 0);
  store_.reset();
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(ActivationStoreTest, GivesNoEntryThatIsLongerThanTheMemory) {
  Open();
  store_->Attach(kJob, 0);
  Put(kJob, kFirst, 1, Entry(1));
  for (const bool in_files : {false, true}) {
    if (in_files) Open();
    std::string memory(9'999, '#');
    EXPECT_EQ(store_->Get(kJob, kFirst, 1, std::as_writable_bytes(std::span(memory))), 0);
    EXPECT_EQ(memory, std::string(9'999, '#'));
    memory.push_back('#');
    EXPECT_EQ(store_->Get(kJob, kFirst, 1, std::as_writable_bytes(std::span(memory))), 10'000);
    EXPECT_EQ(memory, Entry(1));
  }
}

TEST_F(ActivationStoreTest, AFolderThatCannotBeMadeIsAnError) {
  std::ofstream(folder_ / "file") << "x";
  options_.folder = folder_ / "file/store";
  const auto store = ActivationStore::Open(options_);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("[STORE]"));
}

}  // namespace
}  // namespace egeria::cache

#include "worker/cache/client/cache_client.h"

#include <signal.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/rpc/address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cache_daemon.h"
#include "tests/support/child_process.h"

namespace egeria::cache {
namespace {

using ::testing::HasSubstr;

const JobId kJob("0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11");
const JobId kOther("1b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d22");
constexpr Fingerprint kFirst = {1};
constexpr Fingerprint kSecond = {2};
constexpr int64_t kFloats = 2'000;  // values of an activation
constexpr absl::Duration kLong = absl::Minutes(5);

// The prefix gives this for a sample: different values for each, so that no other one can be taken for it.
std::vector<float> Activation(uint64_t sample) {
  std::vector<float> values(kFloats);
  for (int64_t i = 0; i < kFloats; ++i) values[i] = static_cast<float>(sample * 1'000 + i);
  return values;
}
uint64_t InputHash(uint64_t sample) { return sample * 0x9e3779b97f4a7c15; }

void FlipBits(const std::filesystem::directory_entry& file, int flips, std::mt19937_64& random) {
  std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
  for (int flip = 0; flip < flips; ++flip) {
    const auto at = static_cast<std::streamoff>(random() % file.file_size());
    bytes.seekg(at);
    const char byte = static_cast<char>(bytes.get() ^ (1 << random() % 8));
    bytes.seekp(at);
    bytes.put(byte);
  }
}

// A piece of another process's memory that only it has, and a copy of it.
struct MemoryPart {
  pid_t process;
  std::byte* address;
  std::vector<std::byte> bytes;
};

std::vector<MemoryPart> PrivateMemoryOf(pid_t process) {
  std::vector<MemoryPart> parts;
  std::ifstream maps("/proc/" + std::to_string(process) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char rights[5] = "";
    unsigned long inode = 1;
    std::sscanf(line.c_str(), "%lx-%lx %4s %*s %*s %lu", &begin, &end, rights, &inode);
    if (std::string(rights) != "rw-p" || inode != 0) continue;
    MemoryPart& part = parts.emplace_back(MemoryPart{process, reinterpret_cast<std::byte*>(begin), {}});
    part.bytes.resize(end - begin);
    const iovec own{part.bytes.data(), part.bytes.size()}, theirs{part.address, part.bytes.size()};
    part.bytes.resize(std::max<ssize_t>(0, process_vm_readv(process, &own, 1, &theirs, 1, 0)));
  }
  return parts;
}

// Flips one bit in each copy of a sample's activation, and returns how many there were.
int FlipActivation(uint64_t sample, std::mt19937_64& random, MemoryPart* part) {
  const std::vector<float> values = Activation(sample);
  const auto bytes = std::as_bytes(std::span(values));
  constexpr size_t kBeginning = 64;
  std::byte* const end = part->bytes.data() + part->bytes.size();
  int flips = 0;
  for (std::byte* at = part->bytes.data();; ++at) {
    at = static_cast<std::byte*>(memmem(at, end - at, bytes.data(), kBeginning));
    if (at == nullptr) break;
    std::byte* const flipped = at + random() % kBeginning;
    *flipped ^= std::byte{1} << random() % 8;
    const iovec own{flipped, 1}, theirs{part->address + (flipped - part->bytes.data()), 1};
    flips += process_vm_writev(part->process, &own, 1, &theirs, 1, 0) == 1;
  }
  return flips;
}

// With a real egeria-cache of its own.
class CacheClientTest : public ::testing::Test {
 protected:
  static size_t EntryBytes() {
    const EntryTensor tensor{DataType::kFloat32, {kFloats}, nullptr};
    return EntrySize(std::span(&tensor, 1));
  }
  static void Offer(CacheClient& client, const Fingerprint& prefix, uint64_t first, uint64_t count) {
    std::vector<std::vector<float>> values;
    std::vector<CacheClient::Offered> entries;
    for (uint64_t sample = first; sample < first + count; ++sample) {
      values.push_back(Activation(sample));
      const auto* data = reinterpret_cast<const std::byte*>(values.back().data());
      entries.push_back({sample, InputHash(sample), {{DataType::kFloat32, {kFloats}, data}}});
    }
    client.Offer(prefix, entries);
    EXPECT_TRUE(client.Flush(absl::Seconds(20)));
  }
  struct Started {
    std::vector<uint64_t> samples;
    std::shared_ptr<PendingLookup> lookup;
  };
  static Started Start(CacheClient& client, const Fingerprint& prefix, uint64_t first, uint64_t count) {
    std::vector<uint64_t> samples;
    for (uint64_t sample = first; sample < first + count; ++sample) samples.push_back(sample);
    return {samples, client.StartLookup(prefix, samples, EntryBytes())};
  }
  // How many of its samples are found; each must be the right one.
  static int Finish(CacheClient& client, const Started& started) {
    int found = 0;
    const std::vector<CacheClient::Outcome> outcomes =
        client.FinishLookup(started.lookup.get(), [&](size_t position, const Entry& entry) {
          ++found;
          const std::vector<float> expected = Activation(started.samples[position]);
          EXPECT_EQ(entry.input_hash, InputHash(started.samples[position]));
          ASSERT_EQ(entry.tensors.size(), 1);
          EXPECT_EQ(entry.tensors[0].shape, std::vector<int64_t>{kFloats});
          EXPECT_EQ(std::memcmp(entry.tensors[0].data, expected.data(), kFloats * sizeof(float)), 0);
        });
    EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), CacheClient::Outcome::kFound), found);
    return found;
  }
  static int Find(CacheClient& client, const Fingerprint& prefix, uint64_t first, uint64_t count) {
    return Finish(client, Start(client, prefix, first, count));
  }

  testing::CacheDaemon daemon_;
};

TEST_F(CacheClientTest, FindsWhatWasOfferedAndNothingElse) {
  const auto client = daemon_.Connect();
  EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
  Offer(*client, kFirst, 0, 300);  // more than fits into the shared memory at once
  EXPECT_EQ(Find(*client, kFirst, 0, 300), 300);
  EXPECT_EQ(Find(*client, kFirst, 295, 10), 5);
  EXPECT_EQ(Find(*client, kSecond, 0, 10), 0);
  const CacheClient::Counters counters = client->counters();
  EXPECT_EQ(counters.stored, 300);
  EXPECT_EQ(counters.found, 305);
  EXPECT_EQ(counters.absent, 25);
  EXPECT_EQ(counters.corrupt + counters.late + counters.dropped + counters.refused, 0);
  EXPECT_FALSE(counters.streamed);
}

TEST_F(CacheClientTest, TheNextLookupMayBeUnderWay) {
  for (const size_t shared_bytes : {size_t{1} << 20, size_t{1} << 50}) {  // the second is streamed
    const auto client = daemon_.Connect(kJob, shared_bytes, kLong);
    Offer(*client, kFirst, 0, 300);
    Started started = Start(*client, kFirst, 0, 10);
    for (uint64_t first = 10; first < 300; first += 10) {
      Started next = Start(*client, kFirst, first, first == 150 ? 150 : 10);  // once more than fits at once
      if (first % 50 == 0) Offer(*client, kSecond, first, 30);
      EXPECT_EQ(Finish(*client, started), 10);
      started = std::move(next);
      if (first != 150) continue;
      EXPECT_EQ(Finish(*client, started), 150);
      started = Start(*client, kFirst, 0, 10);
    }
    EXPECT_EQ(Finish(*client, started), 10);
    EXPECT_EQ(client->counters().late + client->counters().corrupt, 0);
  }
}

TEST_F(CacheClientTest, TheDaemonReadsBeforeALookupIsFinished) {
  const auto client = daemon_.Connect(kJob, size_t{1} << 20);
  Offer(*client, kFirst, 0, 20);
  int found = 0;
  for (auto time = std::chrono::milliseconds(50); found < 20 && time < std::chrono::seconds(20); time *= 2) {
    ASSERT_TRUE(testing::WaitUntil([&] { return client->attached(); }));
    const Started one = Start(*client, kFirst, 0, 10);
    const Started two = Start(*client, kFirst, 10, 10);
    std::this_thread::sleep_for(time);
    daemon_.Signal(SIGSTOP);
    found = Finish(*client, one) + Finish(*client, two);
    daemon_.Signal(SIGCONT);
  }
  EXPECT_EQ(found, 20) << "and it has had the time";
}

TEST_F(CacheClientTest, LookupsUnderWayAreInNobodysWay) {
  const auto client = daemon_.Connect(kJob, size_t{1} << 20, kLong);
  Offer(*client, kFirst, 0, 100);
  for (uint64_t first = 0; first < 100; first += 20) {
    Start(*client, kFirst, first, 20);
    const Started started = Start(*client, kFirst, 0, 100);
    Start(*client, kFirst, 50, 20);
    EXPECT_EQ(Finish(*client, started), 100);
    {
      const Started failing = Start(*client, kFirst, 0, 10);
      const auto fail = [](size_t, const Entry&) { throw std::bad_alloc(); };
      EXPECT_THROW(client->FinishLookup(failing.lookup.get(), fail), std::bad_alloc);
    }
    EXPECT_EQ(Find(*client, kFirst, 0, 100), 100);
  }
  const Started one = Start(*client, kFirst, 0, 10);
  const Started two = Start(*client, kFirst, 10, 10);
  EXPECT_EQ(Find(*client, kFirst, 20, 10), 0) << "more than may be under way";
  EXPECT_EQ(Finish(*client, two), 10);
  EXPECT_EQ(Find(*client, kFirst, 20, 10), 10);
  EXPECT_EQ(Finish(*client, one), 10);
  EXPECT_EQ(client->counters().attached, 1) << "no reason to give the line up";
}

TEST_F(CacheClientTest, RanksShareAJobsEntriesAndJobsDoNot) {
  const auto one = daemon_.Connect();
  const auto two = daemon_.Connect();
  const auto other = daemon_.Connect(kOther);
  Offer(*one, kFirst, 0, 20);
  Offer(*two, kFirst, 10, 20);  // half of them are there already
  EXPECT_EQ(Find(*two, kFirst, 0, 30), 30);
  EXPECT_EQ(Find(*one, kFirst, 0, 30), 30);
  EXPECT_EQ(Find(*other, kFirst, 0, 30), 0);
}

TEST_F(CacheClientTest, WithoutSharedMemoryTheBytesAreStreamed) {
  const auto client = daemon_.Connect(kJob, size_t{1} << 50);  // there is not as much
  Offer(*client, kFirst, 0, 300);
  EXPECT_EQ(Find(*client, kFirst, 0, 300), 300);
  EXPECT_TRUE(client->counters().streamed);
}

TEST_F(CacheClientTest, EntriesLargerThanAMessageAreStreamedToo) {
  const auto client = daemon_.Connect(kJob, size_t{1} << 50);
  std::vector<float> values(1'000'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const EntryTensor tensor{DataType::kFloat32, {1'000'000}, reinterpret_cast<const std::byte*>(values.data())};
  const CacheClient::Offered offered{1, 2, {tensor}};
  client->Offer(kFirst, std::span(&offered, 1));
  ASSERT_TRUE(client->Flush(absl::Seconds(20)));
  bool same = false;
  const uint64_t sample = 1;
  client->Lookup(kFirst, std::span(&sample, 1), EntrySize(std::span(&tensor, 1)), [&](size_t, const Entry& found) {
    same = std::memcmp(found.tensors[0].data, values.data(), 4'000'000) == 0;
  });
  EXPECT_TRUE(same);
}

TEST_F(CacheClientTest, AnEntryThatDoesNotFitIntoTheSharedMemoryIsRefusedWithTheReason) {
  const auto client = daemon_.Connect(kJob, size_t{1} << 20);  // a third of it is for offers
  const std::vector<float> values(200'000);
  const EntryTensor tensor{DataType::kFloat32, {200'000}, reinterpret_cast<const std::byte*>(values.data())};
  ::testing::internal::CaptureStderr();
  for (uint64_t sample : {1, 2}) {
    const CacheClient::Offered offered{sample, 2, {tensor}};
    client->Offer(kFirst, std::span(&offered, 1));
    EXPECT_TRUE(client->Flush(absl::Seconds(20)));
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("[ENTRY_TOO_LONG] the activations of a sample take 800"));
  EXPECT_THAT(log, HasSubstr("such samples are computed"));
  EXPECT_EQ(log.find("[ENTRY_TOO_LONG]"), log.rfind("[ENTRY_TOO_LONG]")) << "it is said once";
  EXPECT_EQ(client->counters().refused, 2);
  Offer(*client, kFirst, 3, 3);
  EXPECT_EQ(Find(*client, kFirst, 3, 3), 3) << "others are kept";
}

TEST_F(CacheClientTest, AnEntryLongerThanExpectedIsNoHitAndStays) {
  const auto streamed = daemon_.Connect(kJob, size_t{1} << 50);
  const auto shared = daemon_.Connect();
  Offer(*streamed, kFirst, 0, 3);
  const std::vector<uint64_t> samples = {0, 1, 2};
  for (CacheClient* client : {streamed.get(), shared.get()}) {
    const auto outcomes = client->Lookup(kFirst, samples, EntryBytes() / 2, [](size_t, const Entry&) { FAIL(); });
    EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), CacheClient::Outcome::kAbsent), 3);
    EXPECT_EQ(client->counters().corrupt, 0);
  }
  EXPECT_EQ(Find(*streamed, kFirst, 0, 3), 3);
}

TEST_F(CacheClientTest, UnfreezingForgetsAPrefixAndNoOther) {
  const auto client = daemon_.Connect();
  Offer(*client, kFirst, 0, 10);
  Offer(*client, kSecond, 0, 10);
  client->Drop(kFirst);
  ASSERT_TRUE(client->Flush(absl::Seconds(20)));
  EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
  EXPECT_EQ(Find(*client, kSecond, 0, 10), 10);
  client->Drop(kSecond);
  ASSERT_TRUE(client->Flush(absl::Seconds(20)));
  EXPECT_EQ(Find(*client, kSecond, 0, 10), 0);
}

TEST_F(CacheClientTest, AKilledDaemonGivesMissesAndARestartedOneGoesOn) {
  const auto client = daemon_.Connect();
  Offer(*client, kFirst, 0, 100);
  daemon_.End(SIGKILL);
  EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
  EXPECT_GE(client->counters().late, 10);
  Offer(*client, kFirst, 100, 10);  // dropped
  daemon_.Start();
  ASSERT_TRUE(testing::WaitUntil([&] { return client->counters().attached == 2; }));
  Find(*client, kFirst, 0, 100);  // entries that were not written yet are gone; those that are found are right
  Offer(*client, kFirst, 0, 100);
  EXPECT_EQ(Find(*client, kFirst, 0, 100), 100);
}

TEST_F(CacheClientTest, WhatIsForgottenWhileTheDaemonIsAwayIsGoneWhenItIsBack) {
  const auto client = daemon_.Connect();
  Offer(*client, kFirst, 0, 10);
  Offer(*client, kSecond, 0, 10);
  daemon_.End(SIGTERM);
  ASSERT_TRUE(testing::WaitUntil([&] { return !client->attached(); }));
  client->Drop(kFirst);
  EXPECT_TRUE(client->Flush(absl::Seconds(20))) << "nobody waits for the daemon";
  daemon_.Start();
  ASSERT_TRUE(testing::WaitUntil([&] { return client->counters().attached == 2; }));
  ASSERT_TRUE(client->Flush(absl::Seconds(20)));
  EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
  EXPECT_EQ(Find(*client, kSecond, 0, 10), 10);
}

TEST_F(CacheClientTest, AfterAnOrderlyEndAllEntriesAreThere) {
  {
    const auto client = daemon_.Connect();
    Offer(*client, kFirst, 0, 100);
  }
  daemon_.End(SIGTERM);
  daemon_.Start();
  EXPECT_EQ(Find(*daemon_.Connect(), kFirst, 0, 100), 100);
}

TEST_F(CacheClientTest, AStoppedDaemonIsWaitedForNoLongerThanSaid) {
  const auto client = daemon_.Connect();
  Offer(*client, kFirst, 0, 10);
  daemon_.Signal(SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(client->counters().late, 10);
  // From then on it is hardly ever asked: a stopped daemon costs next to nothing.
  const auto later = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - later, std::chrono::seconds(5));
  daemon_.Signal(SIGCONT);
  EXPECT_TRUE(testing::WaitUntil([&] { return Find(*client, kFirst, 0, 10) == 10; }));
}

// While a daemon does not write, so many bytes wait, and no more; the training goes on.
TEST_F(CacheClientTest, OffersThatDoNotFitIntoTheQueueAreDropped) {
  CacheClient::Options options;
  options.address = *rpc::ParseAddress(daemon_.address());
  options.name = kJob;
  options.queue_bytes = 20 * EntryBytes();
  options.shared_bytes = size_t{1} << 20;
  const auto client = CacheClient::Start(options);
  ASSERT_TRUE(testing::WaitUntil([&] { return client->attached(); }));
  daemon_.Signal(SIGSTOP);
  const std::vector<float> values = Activation(1);
  const EntryTensor tensor{DataType::kFloat32, {kFloats}, reinterpret_cast<const std::byte*>(values.data())};
  std::vector<CacheClient::Offered> offered;
  for (uint64_t sample = 0; sample < 100; ++sample) offered.push_back({sample, InputHash(1), {tensor}});
  const int64_t taken = client->Offer(kFirst, offered);
  EXPECT_EQ(taken, 20);
  const CacheClient::Counters counters = client->counters();
  EXPECT_EQ(counters.offered, 100);
  EXPECT_EQ(counters.dropped, 100 - taken);
  daemon_.Signal(SIGCONT);
  EXPECT_TRUE(client->Flush(absl::Seconds(20)));
  EXPECT_EQ(client->counters().stored, taken);
}

TEST_F(CacheClientTest, EndsSoonThoughADropIsNotAnswered) {
  const auto client = daemon_.Connect();
  Offer(*client, kFirst, 0, 10);
  daemon_.Signal(SIGSTOP);
  client->Drop(kFirst);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto begin = std::chrono::steady_clock::now();
  client->Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  daemon_.Signal(SIGCONT);
}

TEST_F(CacheClientTest, FlippedBitsInTheStoreAreNeverAccepted) {
  constexpr uint64_t kSamples = 400;
  {
    const auto client = daemon_.Connect();
    Offer(*client, kFirst, 0, kSamples);
  }
  std::mt19937_64 random(3);
  int64_t corrupt = 0;
  for (int round = 0; round < 20; ++round) {
    daemon_.End(SIGTERM);
    for (const auto& file : std::filesystem::directory_iterator(daemon_.store())) {
      if (file.path().extension() != ".blob") continue;
      FlipBits(file, 5'000, random);
    }
    daemon_.Start();
    const auto client = daemon_.Connect();
    Find(*client, kFirst, 0, kSamples);  // fails where one is wrong
    corrupt += client->counters().corrupt;
    Offer(*client, kFirst, 0, kSamples);
    EXPECT_EQ(Find(*client, kFirst, 0, kSamples), static_cast<int>(kSamples)) << "what was corrupt is written anew";
  }
  EXPECT_GT(corrupt, 0) << "no entry was hit, so that nothing was tried";
}

// Its index, its list of files, its log: what cannot be read is given up, and the daemon begins with an empty folder.
TEST_F(CacheClientTest, FlippedBitsInTheDaemonsMemoryAreNeverAccepted) {
  constexpr uint64_t kSamples = 40;
  const auto client = daemon_.Connect();
  Offer(*client, kFirst, 0, kSamples);
  ASSERT_EQ(Find(*client, kFirst, 0, kSamples), static_cast<int>(kSamples));
  std::mt19937_64 random(5);
  for (int round = 0; round < 3; ++round) {
    const int64_t before = client->counters().corrupt;
    int flips = 0;
    for (MemoryPart& part : PrivateMemoryOf(daemon_.pid())) {
      for (uint64_t sample = 0; sample < kSamples; sample += 2) flips += FlipActivation(sample, random, &part);
    }
    if (flips == 0) GTEST_SKIP() << "another process's memory cannot be written here";
    Find(*client, kFirst, 0, kSamples);  // fails where one is wrong
    EXPECT_GE(client->counters().corrupt - before, static_cast<int64_t>(kSamples / 2));
    EXPECT_TRUE(client->Flush(kLong));
    Offer(*client, kFirst, 0, kSamples);
    EXPECT_EQ(Find(*client, kFirst, 0, kSamples), static_cast<int>(kSamples)) << "what was corrupt is written anew";
  }
}

TEST_F(CacheClientTest, AcceptsNothingWrongAfterFlipsInAnyFileOfTheStore) {
  constexpr uint64_t kSamples = 100;
  std::mt19937_64 random(4);
  for (int round = 0; round < 30; ++round) {
    {
      const auto client = daemon_.Connect();
      Offer(*client, kFirst, 0, kSamples);
    }
    daemon_.End(SIGTERM);
    for (const auto& file : std::filesystem::directory_iterator(daemon_.store())) {
      if (!file.is_regular_file() || file.file_size() == 0) continue;
      FlipBits(file, 1 + round, random);
    }
    daemon_.Start();
    const auto client = daemon_.Connect();
    Find(*client, kFirst, 0, kSamples);  // fails where one is wrong
    Offer(*client, kFirst, 0, kSamples);
    EXPECT_EQ(Find(*client, kFirst, 0, kSamples), static_cast<int>(kSamples)) << "round " << round;
  }
}

TEST_F(CacheClientTest, ASecondDaemonOnTheFolderSaysSo) {
  auto second = testing::ChildProcess::Start(
      {EGERIA_CACHE, "--folder", daemon_.store(), "--listen", "unix:" + (daemon_.folder() / "other.sock")}, {},
      daemon_.folder() / "second");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->Wait(), 1);
  std::ifstream file(daemon_.folder() / "second");
  const std::string said{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(said, ::testing::HasSubstr("[STORE_IN_USE]"));
}

TEST_F(CacheClientTest, AForkedChildDoesNothing) {
  const auto client = daemon_.Connect();
  Offer(*client, kFirst, 0, 10);
  const pid_t child = fork();
  if (child == 0) _exit(Find(*client, kFirst, 0, 10) == 0 && !client->attached() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Find(*client, kFirst, 0, 10), 10);
}

TEST_F(CacheClientTest, WithoutADaemonEverythingIsAMissAndTheEndIsPrompt) {
  daemon_.End(SIGTERM);
  const auto begin = std::chrono::steady_clock::now();
  {
    CacheClient::Options options;
    options.address = *rpc::ParseAddress("unix:" + (daemon_.folder() / "nobody.sock"));
    options.name = kJob;
    const auto client = CacheClient::Start(options);
    Offer(*client, kFirst, 0, 10);
    EXPECT_EQ(Find(*client, kFirst, 0, 10), 0);
    EXPECT_TRUE(client->Flush(kLong)) << "nothing can be done about what waits for a daemon";
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(CacheClientTest, WhatIsOfferedToADaemonThatIsNotUpYetIsKeptForSomeSeconds) {
  daemon_.End(SIGTERM);
  CacheClient::Options options;
  options.address = *rpc::ParseAddress(daemon_.address());
  options.name = kJob;
  const auto client = CacheClient::Start(options);
  Offer(*client, kFirst, 0, 10);
  daemon_.Start();
  ASSERT_TRUE(testing::WaitUntil([&] { return client->attached(); }));
  EXPECT_TRUE(client->Flush(kLong));
  EXPECT_EQ(Find(*client, kFirst, 0, 10), 10);
}

}  // namespace
}  // namespace egeria::cache

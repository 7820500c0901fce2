// How fast egeria-cache gives entries back, over a plain file read of the same bytes: batches of samples in a random
// order, from the daemon through CacheClient into a buffer, two batches under way, and by pread into the same buffer;
// with the page cache hot, and cold. Both take turns, so that a noisy machine slows them alike; a ratio is taken within
// each round, and its median, least and most over the rounds are printed, and the processor time of client and daemon
// over that of the plain reads.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/benchmarks/recording.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_folder.h"
#include "worker/cache/client/cache_client.h"

namespace egeria::cache {
namespace {

constexpr Fingerprint kPrefix = {1};

struct Options {
  std::vector<size_t> kibibytes = {64, 128, 256};
  size_t mebibytes = 256;  // all entries of one size together
  size_t batch = 32;
  int rounds = 21;
  size_t shared_mebibytes = 128;
};

struct Spread {
  double low, median, high;
};

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

// The time of a clock, or a process's time on all processors.
double Seconds(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

clockid_t ProcessorsOf(pid_t process) {
  clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
  clock_getcpuclockid(process, &clock);
  return clock;
}

struct Cost {
  double seconds, processor_seconds;
};

void Require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

// Noise, so that no bytes are alike.
std::vector<uint64_t> Values(uint64_t sample, size_t bytes) {
  std::mt19937_64 random(sample);
  std::vector<uint64_t> values(bytes / sizeof(uint64_t));
  for (uint64_t& value : values) value = random();
  return values;
}

// The same entries in a daemon's store and in a plain file, one after the other.
class Bench {
 public:
  Bench(const Options& options, size_t bytes)
      : options_(options), bytes_(bytes), entries_((options.mebibytes << 20) / bytes), batch_(options.batch * bytes) {
    file_ = open((folder_ / "plain").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    Require(file_ >= 0, "cannot make a file");
    StartDaemon();
    Fill();
    // Once more, so that all entries come from files and none from a write buffer.
    StopDaemon();
    StartDaemon();
  }
  ~Bench() {
    StopDaemon();
    close(file_);
  }

  void Run(bool cold, testing::Recording& recording) {
    std::vector<uint64_t> order(entries_);
    std::iota(order.begin(), order.end(), uint64_t{0});
    std::mt19937_64 random(1);
    std::vector<double> plain, cache, ratios, processor_ratios;
    for (int round = -1; round < options_.rounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      if (cold) ForgetPages();
      const Cost of_plain = Measure([&] { ReadPlain(order); });
      if (cold) ForgetPages();
      const Cost of_cache = Measure([&] { ReadCache(order); });
      if (round < 0) continue;  // the first one warms up
      const double gigabytes = static_cast<double>(entries_ * bytes_) / 1e9;
      plain.push_back(gigabytes / of_plain.seconds);
      cache.push_back(gigabytes / of_cache.seconds);
      ratios.push_back(of_plain.seconds / of_cache.seconds);
      processor_ratios.push_back(of_cache.processor_seconds / of_plain.processor_seconds);
    }
    const std::string what = absl::StrCat(bytes_ >> 10, " KiB, ", cold ? "cold" : "hot");
    recording.Add(what, plain, "GB/s", "plain reads");
    recording.Add(what, cache, "GB/s", "the cache");
    recording.Add(what, ratios, "times", "speed over plain reads");
    recording.Add(what, processor_ratios, "times", "processor time over that of plain reads");
    const Spread ratio = SpreadOf(ratios);
    std::printf(
        "%4zu KiB  %s  plain %6.2f GB/s  cache %6.2f GB/s  cache / plain %.2f [%.2f, %.2f]  "
        "processor time %.1f times\n",
        bytes_ >> 10, cold ? "cold" : "hot ", SpreadOf(plain).median, SpreadOf(cache).median, ratio.median, ratio.low,
        ratio.high, SpreadOf(processor_ratios).median);
    std::fflush(stdout);
  }

 private:
  void StartDaemon() {
    auto daemon = testing::ChildProcess::Start(
        {EGERIA_CACHE, "--folder", folder_ / "store", "--keep-free", "0", "--ready-fd", "1", "--log-level", "warning"});
    Require(daemon.ok(), "cannot start egeria-cache");
    daemon_.emplace(*std::move(daemon));
    Require(daemon_->ReadLine() == "READY=1", "egeria-cache did not start");
    CacheClient::Options options;
    options.address = *rpc::ParseAddress("unix:" + (folder_ / "store/cache.sock"));
    options.name = JobId("0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11");
    options.shared_bytes = options_.shared_mebibytes << 20;
    options.patience = absl::Seconds(60);
    client_ = CacheClient::Start(options);
    while (!client_->attached()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Require(!client_->counters().streamed, "there is no shared memory");
  }
  void StopDaemon() {
    client_.reset();
    daemon_->Signal(SIGTERM);
    daemon_->Wait();
    daemon_.reset();
  }

  EntryTensor TensorOf(const void* data) const {
    return {DataType::kFloat32, {static_cast<int64_t>(bytes_ / sizeof(float))}, static_cast<const std::byte*>(data)};
  }
  void Fill() {
    for (uint64_t sample = 0; sample < entries_; ++sample) {
      const std::vector<uint64_t> values = Values(sample, bytes_);
      const auto at = static_cast<off_t>(sample * bytes_);
      Require(pwrite(file_, values.data(), bytes_, at) == static_cast<ssize_t>(bytes_), "cannot write the file");
      const CacheClient::Offered entry{sample, sample, {TensorOf(values.data())}};
      // The disk may be behind; then the daemon refuses, and the entry is offered again.
      for (;;) {
        const int64_t stored = client_->counters().stored;
        Require(client_->Offer(kPrefix, std::span(&entry, 1)) == 1, "the cache does not take entries");
        Require(client_->Flush(absl::Seconds(60)), "the cache does not store");
        if (client_->counters().stored > stored) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }
  void ForgetPages() const {
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder_.path())) {
      if (!file.is_regular_file()) continue;
      const int opened = open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
      if (opened < 0) continue;
      fsync(opened);  // only clean pages can be forgotten
      posix_fadvise(opened, 0, 0, POSIX_FADV_DONTNEED);
      close(opened);
    }
  }

  // The cost of a body for this process and the daemon.
  Cost Measure(const std::function<void()>& body) const {
    const clockid_t daemon = ProcessorsOf(daemon_->pid());
    const double processors = Seconds(CLOCK_PROCESS_CPUTIME_ID) + Seconds(daemon);
    const double begin = Seconds(CLOCK_MONOTONIC);
    body();
    return {Seconds(CLOCK_MONOTONIC) - begin, Seconds(CLOCK_PROCESS_CPUTIME_ID) + Seconds(daemon) - processors};
  }

  void ReadPlain(const std::vector<uint64_t>& order) {
    for (size_t i = 0; i < order.size(); ++i) {
      const auto at = static_cast<off_t>(order[i] * bytes_);
      Require(pread(file_, Slot(i), bytes_, at) == static_cast<ssize_t>(bytes_), "cannot read the file");
    }
  }
  // As BatchReader does: while one lookup is finished, the next one is under way.
  void ReadCache(const std::vector<uint64_t>& order) {
    size_t found = 0;
    const EntryTensor tensor = TensorOf(nullptr);
    const size_t entry_bytes = EntrySize(std::span(&tensor, 1));
    std::shared_ptr<PendingLookup> started;
    for (size_t at = 0; at < order.size() || started != nullptr; at += options_.batch) {
      std::shared_ptr<PendingLookup> next;
      if (at < order.size()) {
        const std::span<const uint64_t> samples(order.data() + at, std::min(options_.batch, order.size() - at));
        next = client_->StartLookup(kPrefix, samples, entry_bytes);
      }
      if (started != nullptr) {
        client_->FinishLookup(started.get(), [&](size_t i, const Entry& entry) {
          std::memcpy(Slot(i), entry.tensors[0].data, bytes_);
          ++found;
        });
      }
      started = std::move(next);
    }
    Require(found == order.size(), "an entry was not found");
  }
  // The place of the i-th sample in the batch.
  std::byte* Slot(size_t i) { return batch_.data() + i % options_.batch * bytes_; }

  const Options options_;
  const size_t bytes_;
  const size_t entries_;
  std::vector<std::byte> batch_;
  testing::TempFolder folder_;
  int file_ = -1;
  std::optional<testing::ChildProcess> daemon_;
  std::unique_ptr<CacheClient> client_;
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("times reads of egeria-cache against plain file reads");
  app.add_option("--kibibytes", options.kibibytes, "sizes of an entry")->delimiter(',');
  app.add_option("--mebibytes", options.mebibytes, "of all entries of one size");
  app.add_option("--batch", options.batch, "samples of a lookup");
  app.add_option("--rounds", options.rounds, "each: every entry once, by both ways");
  app.add_option("--shared-mebibytes", options.shared_mebibytes, "of shared memory; two thirds of it are for lookups");
  std::string record;
  app.add_option("--record", record, "file that what was measured is written to, for docs/results/measured");
  CLI11_PARSE(app, argc, argv);
  testing::Recording recording("build/dev/benchmarks/cache_throughput_benchmark");
  for (const size_t kibibytes : options.kibibytes) {
    Bench bench(options, kibibytes << 10);
    bench.Run(/*cold=*/false, recording);
    bench.Run(/*cold=*/true, recording);
  }
  recording.Write(record, options.rounds);
  return 0;
}

}  // namespace
}  // namespace egeria::cache

int main(int argc, char** argv) { return egeria::cache::Main(argc, argv); }

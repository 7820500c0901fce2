// The time that a batch of small samples takes from egeria-cache: for the thread that asks, and for the processors.
// Batches come in a random order, each sample once an epoch, as in a training. "ahead": the next batches are expected,
// and the thread computes between two batches; "asked": nothing is expected, and the thread waits. Medians over batches
// and the 90th percentile in brackets; processor time is the mean over all batches, of this process and the daemon's.
#include <signal.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ATen/ops/randn.h"
#include "tests/support/cache_daemon.h"
#include "worker/cache/client/activation_cache.h"

namespace egeria::cache {
namespace {

constexpr Fingerprint kPrefix = {1};

struct Options {
  std::vector<size_t> kibibytes = {4, 16};
  size_t samples = 4'096;
  size_t batch = 32;
  int epochs = 5;
  double computing_ms = 2;  // between two batches
};

double Seconds(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A process's time on all processors.
clockid_t ProcessorsOf(pid_t process) {
  clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
  clock_getcpuclockid(process, &clock);
  return clock;
}

double Now() { return Seconds(CLOCK_MONOTONIC); }

void Compute(double milliseconds) {
  const double end = Now() + 1e-3 * milliseconds;
  while (Now() < end) {
  }
}

void Require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

class Bench {
 public:
  Bench(const Options& options, size_t bytes) : options_(options), floats_(static_cast<int64_t>(bytes / 4)) {
    Connect();
    std::vector<uint64_t> samples(options_.batch);
    for (uint64_t first = 0; first < options_.samples; first += options_.batch) {
      std::iota(samples.begin(), samples.end(), first);
      Require(cache_->Put(samples, samples, {at::randn({static_cast<int64_t>(options_.batch), floats_})}).ok(), "put");
      Require(cache_->client().Flush(absl::Seconds(60)), "the cache does not store");
    }
  }
  ~Bench() { cache_->Stop(); }

  // Another daemon, which has the entries on its disk alone.
  void Restart() {
    cache_->Stop();
    daemon_.End(SIGTERM);
    daemon_.Start();
    Connect();
  }

  void Run(const char* from, bool ahead) {
    std::mt19937_64 random(1);
    std::vector<uint64_t> order(options_.samples);
    std::iota(order.begin(), order.end(), uint64_t{0});
    std::vector<double> taken;
    double own = 0, daemons = 0;
    for (int epoch = -1; epoch < options_.epochs; ++epoch) {
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::vector<uint64_t>> batches;
      for (size_t at = 0; at + options_.batch <= order.size(); at += options_.batch) {
        batches.emplace_back(order.begin() + at, order.begin() + at + options_.batch);
      }
      double computed = 0;
      const double own_begin = Seconds(CLOCK_PROCESS_CPUTIME_ID), daemons_begin = Seconds(ProcessorsOf(daemon_.pid()));
      for (size_t i = 0; i < batches.size(); ++i) {
        if (ahead) {
          const auto end = std::min(batches.size(), i + 9);
          cache_->Expect({batches.begin() + i, batches.begin() + end});
          const double begin = Seconds(CLOCK_THREAD_CPUTIME_ID);
          Compute(options_.computing_ms);
          computed += Seconds(CLOCK_THREAD_CPUTIME_ID) - begin;
        }
        const double begin = Now();
        const CachedBatch batch = cache_->Take(batches[i], batches[i], 60);
        if (epoch >= 0) taken.push_back(1e3 * (Now() - begin));
        for (const SampleOutcome outcome : batch.outcomes) Require(outcome == SampleOutcome::kHit, "a miss");
      }
      if (epoch < 0) continue;  // the first one warms up
      own += Seconds(CLOCK_PROCESS_CPUTIME_ID) - own_begin - computed;
      daemons += Seconds(ProcessorsOf(daemon_.pid())) - daemons_begin;
    }
    std::sort(taken.begin(), taken.end());
    const auto count = static_cast<double>(taken.size());
    std::printf("%4ld KiB  %-6s  %-5s  %.3f ms [%.3f]  processors: client %.3f ms, daemon %.3f ms\n", floats_ * 4 >> 10,
                from, ahead ? "ahead" : "asked", taken[taken.size() / 2], taken[taken.size() * 9 / 10],
                1e3 * own / count, 1e3 * daemons / count);
    std::fflush(stdout);
  }

 private:
  void Connect() {
    cache_ = *ActivationCache::Start({.address = daemon_.address(),
                                      .job_id = "0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11",
                                      .patience = absl::Seconds(60)});
    while (!cache_->client().attached()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    cache_->Use(kPrefix);
  }

  const Options options_;
  const int64_t floats_;
  testing::CacheDaemon daemon_;
  std::shared_ptr<ActivationCache> cache_;
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("times batches of small samples from egeria-cache");
  app.add_option("--kibibytes", options.kibibytes, "sizes of a sample")->delimiter(',');
  app.add_option("--samples", options.samples, "of an epoch");
  app.add_option("--batch", options.batch, "samples of a batch");
  app.add_option("--epochs", options.epochs, "besides one that warms up");
  app.add_option("--computing-ms", options.computing_ms, "between two batches that are read ahead");
  CLI11_PARSE(app, argc, argv);
  for (const size_t kibibytes : options.kibibytes) {
    Bench bench(options, kibibytes << 10);
    for (const char* from : {"memory", "disk"}) {
      for (const bool ahead : {true, false}) bench.Run(from, ahead);
      bench.Restart();
    }
  }
  return 0;
}

}  // namespace
}  // namespace egeria::cache

int main(int argc, char** argv) { return egeria::cache::Main(argc, argv); }

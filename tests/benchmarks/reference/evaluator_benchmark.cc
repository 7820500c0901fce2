// Readings per second of the controller's evaluator: samples go in at SubmitSample() and readings come out, with four
// samples on their way at any time, for several kinds of layer module.
// usage: evaluator_benchmark [SECONDS [MODULE [RECORD]]]; MODULE may be "all", RECORD is for docs/results/measured.
#include <sys/resource.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "controller/reference/evaluator.h"
#include "tests/benchmarks/recording.h"
#include "tests/support/reference_graphs.h"

namespace egeria::reference {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kBatch = 32;
constexpr int64_t kUnderWay = 4;

// Returns the same in memory of its own, as a sample has that has come over the network.
std::vector<WireTensor> Arrived(const std::vector<WireTensor>& sample) {
  std::vector<WireTensor> arrived;
  for (const WireTensor& tensor : sample) arrived.push_back(MakeWireTensor(tensor.spec, tensor.data()));
  return arrived;
}

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Returns the readings a second.
double Measure(const testing::SampleModule& module, double seconds) {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t readings = 0;
  std::string backend;
  EvaluatorOptions options;
  options.cpu_load = [] { return 0.0; };
  options.program = EGERIA_REFERENCE_PROGRAM;
  auto evaluator = Evaluator::Start(std::move(options), [&](const Evaluator::Result& result) {
    EGERIA_CHECK(result.evaluation.ok());
    const std::lock_guard lock(mutex);
    ++readings;
    backend = result.evaluation->backend;
    changed.notify_one();
  });
  EGERIA_CHECK(evaluator.ok());
  const JobId job = JobId::Random();
  EGERIA_CHECK((*evaluator)->SetJob(job, {module.graph}, {})[0].ok());
  EGERIA_CHECK((*evaluator)->SubmitSnapshot(job, ModuleIndex(0), 1, 0, module.weights).ok());
  std::mt19937_64 random(7);
  std::vector<int64_t> shape = module.input_shape;
  shape.insert(shape.begin(), kBatch);
  const std::vector<WireTensor> sample = {testing::RandomTensor("x", shape, random),
                                          testing::RandomTensor("gram", {kBatch, kBatch}, random)};
  int64_t submitted = 0, first = 0;
  Clock::time_point start;
  while (true) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return submitted - readings < kUnderWay; });
      if (first == 0 && readings >= 10) {  // the backend is chosen and warm
        first = readings;
        start = Clock::now();
      }
      if (first > 0 && Seconds(Clock::now() - start) > seconds) break;
    }
    EGERIA_CHECK((*evaluator)
                     ->SubmitSample(job, {.module = ModuleIndex(0), .step = ++submitted, .tensors = Arrived(sample)})
                     .ok());
  }
  int64_t counted = 0;
  {
    const std::lock_guard lock(mutex);
    counted = readings - first;
  }
  const double rate = static_cast<double>(counted) / Seconds(Clock::now() - start);
  std::printf("%-20s %-10s %9.1f readings/s\n", module.name.c_str(), backend.c_str(), rate);
  (*evaluator)->Stop();
  return rate;
}

}  // namespace
}  // namespace egeria::reference

int main(int argc, char** argv) {
  using egeria::reference::Measure;
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  const std::string only = argc > 2 && std::string(argv[2]) != "all" ? argv[2] : "";
  egeria::testing::Recording recording("build/dev/benchmarks/evaluator_benchmark");
  const std::vector<std::pair<std::string, std::function<egeria::testing::SampleModule()>>> modules = {
      {"mlp", [] { return egeria::testing::Mlp(); }},
      {"basic_block_early", [] { return egeria::testing::BasicBlock(16, 32); }},
      {"basic_block_late", [] { return egeria::testing::BasicBlock(64, 8); }},
      {"bottleneck", [] { return egeria::testing::Bottleneck(); }},
      {"bert_layer", [] { return egeria::testing::BertLayer(); }}};
  for (const auto& [name, make] : modules) {
    if (!only.empty() && name != only) continue;
    egeria::testing::SampleModule module = make();
    module.name = name;
    recording.Add(name, {Measure(module, seconds)}, "readings a second");
  }
  recording.Write(argc > 3 ? argv[3] : "", /*rounds=*/1);
}

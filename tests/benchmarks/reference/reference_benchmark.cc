// Times the reference engine's backends on several kinds of layer module, and the Gram matrix and SP loss.
// All backends of a module take turns, so that a noisy machine slows them alike; a ratio is taken within each
// round, and its median, minimum and maximum over the rounds are printed.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/plasticity/sp_loss.h"
#include "common/reference/reference_module.h"
#include "common/reference/tensor_bridge.h"
#include "tests/benchmarks/recording.h"
#include "tests/support/reference_graphs.h"

namespace egeria::reference {
namespace {

using testing::Recording;
using testing::SampleModule;

struct Options {
  int64_t batch = 32;
  int rounds = 15;
  int threads = 1;
  std::string only;
  std::string record;
  std::string record_of_distances;
};

struct Spread {
  double low, median, high;
};

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

double Milliseconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

std::span<const float> Values(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), static_cast<size_t>(tensor.numel())};
}

at::Tensor RandomInput(const SampleModule& module, int64_t batch) {
  std::vector<int64_t> shape = module.input_shape;
  shape.insert(shape.begin(), batch);
  return at::randn(shape);
}

struct Candidate {
  std::unique_ptr<Backend> backend;
  double pack_ms = 0;  // and the first run
  double noise = 0;    // SP loss against the baseline, on a batch that it was not calibrated with
  std::vector<double> ms;
};

std::vector<double> Ratios(const std::vector<double>& slow, const std::vector<double>& fast) {
  std::vector<double> ratios;
  for (size_t i = 0; i < slow.size(); ++i) ratios.push_back(slow[i] / fast[i]);
  return ratios;
}

void Report(const std::string& module, const std::vector<Candidate>& candidates, Recording& recording) {
  const auto find = [&](const char* name) {
    const auto found = std::find_if(candidates.begin(), candidates.end(),
                                    [&](const Candidate& c) { return c.backend->name() == name; });
    return found == candidates.end() ? &candidates.front() : &*found;
  };
  for (const Candidate& candidate : candidates) {
    const std::vector<double> eager_ratios = Ratios(find("aten")->ms, candidate.ms);
    const std::vector<double> prepacked_ratios = Ratios(find("prepacked")->ms, candidate.ms);
    const Spread time = SpreadOf(candidate.ms), over_eager = SpreadOf(eager_ratios);
    const Spread over_prepacked = SpreadOf(prepacked_ratios);
    std::printf("%-30s %-18s %9.2f ms   x%5.2f [%5.2f %5.2f]   x%5.2f [%5.2f %5.2f]   %8.1e   %7.1f ms\n",
                module.c_str(), candidate.backend->name().c_str(), time.median, over_eager.median, over_eager.low,
                over_eager.high, over_prepacked.median, over_prepacked.low, over_prepacked.high, candidate.noise,
                candidate.pack_ms);
    if (candidate.backend->name() != "int8") continue;
    recording.Add(module, candidate.ms, "ms", "a pass in int8");
    recording.Add(module, eager_ratios, "times", "speed over float32 eager");
    recording.Add(module, prepacked_ratios, "times", "speed over float32 with prepacked weights");
  }
  std::fflush(stdout);
}

void BenchmarkModule(const SampleModule& module, const Options& options, Recording& recording) {
  const c10::InferenceMode inference;
  auto reference = ReferenceModule::Create(module.graph);
  if (!reference.ok()) throw std::runtime_error(reference.status().ToString());
  (*reference)->SetWeights(module.weights);
  at::manual_seed(1);
  const std::vector<at::Tensor> calibration = {RandomInput(module, options.batch)};
  const std::vector<at::Tensor> input = {RandomInput(module, options.batch)};
  const auto run = [&](const Backend& backend) {
    auto outputs = (*reference)->Run(backend, input);
    if (!outputs.ok()) throw std::runtime_error(backend.name() + ": " + outputs.status().ToString());
    return GramMatrix((*outputs)[0]);
  };
  if (auto status = (*reference)->Calibrate(calibration).status(); !status.ok())
    throw std::runtime_error(status.ToString());

  std::vector<Candidate> candidates;
  auto backends = MakeBackends({"aten", "prepacked", "bf16", "int8"});
  at::Tensor baseline;
  for (auto& backend : *backends) {
    Candidate candidate{.backend = std::move(backend)};
    at::Tensor gram;
    candidate.pack_ms = Milliseconds([&] { gram = run(*candidate.backend); });
    if (!baseline.defined()) baseline = gram;
    candidate.noise = plasticity::SpLoss(Values(gram), Values(baseline), options.batch).value_or(-1);
    candidates.push_back(std::move(candidate));
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (Candidate& candidate : candidates) {
      candidate.ms.push_back(Milliseconds([&] { run(*candidate.backend); }));
    }
  }
  Report(module.name, candidates, recording);
}

// The Gram matrix of b x d rows, and the SP loss of two of them.
void BenchmarkLoss(const Options& options, Recording& recording) {
  const c10::InferenceMode inference;
  for (const int64_t width : {4096, 65536, 802816}) {
    const at::Tensor rows = at::randn({options.batch, width});
    const at::Tensor gram = GramMatrix(rows), other = GramMatrix(at::randn({options.batch, width}));
    std::vector<double> gram_ms, loss_ms;
    for (int round = 0; round < options.rounds; ++round) {
      gram_ms.push_back(Milliseconds([&] { GramMatrix(rows); }));
      loss_ms.push_back(Milliseconds([&] { (void)plasticity::SpLoss(Values(gram), Values(other), options.batch); }));
    }
    const Spread a = SpreadOf(gram_ms), b = SpreadOf(loss_ms);
    std::printf("Gram matrix of %ld x %-7ld %8.3f ms [%.3f %.3f]   SP loss %.4f ms [%.4f %.4f]\n", options.batch, width,
                a.median, a.low, a.high, b.median, b.low, b.high);
    const std::string what = std::to_string(options.batch) + " x " + std::to_string(width);
    recording.Add(what, gram_ms, "ms", "Gram matrix");
    recording.Add(what, loss_ms, "ms", "SP loss of two such matrices");
  }
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{"Speed and noise of the reference engine's backends"};
  app.add_option("--batch", options.batch, "samples per batch")->check(CLI::Range(2, 4096))->capture_default_str();
  app.add_option("--rounds", options.rounds, "turns of each backend")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "intra-op threads")->check(CLI::Range(1, 256))->capture_default_str();
  app.add_option("--only", options.only, "only modules whose name contains this");
  app.add_option("--record", options.record, "file that what was measured is written to, for docs/results/measured");
  app.add_option("--record-distances", options.record_of_distances, "the same for Gram matrices and SP losses");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(options.threads);

  // The whole network first: the allocator keeps more memory the longer a process has run, which helps eager
  // most.
  const std::vector<std::pair<std::string, std::function<SampleModule()>>> modules = {
      {"resnet56", [] { return testing::ResNet56(); }},
      {"resnet56_last_stage", [] { return testing::ResNet56LastStage(); }},
      {"resnet56_block", [] { return testing::BasicBlock(64, 8); }},
      {"resnet50_bottleneck", [] { return testing::Bottleneck(); }},
      {"mobilenetv2_inverted_residual", [] { return testing::InvertedResidual(); }},
      {"bert_layer", [] { return testing::BertLayer(); }},
      {"mlp", [] { return testing::Mlp(); }},
  };
  std::printf("batch %ld, %d thread(s), %d interleaved rounds; ratios are medians [least most]\n\n", options.batch,
              options.threads, options.rounds);
  std::printf("%-30s %-18s %12s   %-22s %-22s %-10s %s\n", "module", "backend", "median", "over float32 eager",
              "over prepacked", "noise", "pack + first run");
  Recording recording("build/dev/benchmarks/reference_benchmark", "module");
  for (const auto& [name, make] : modules) {
    if (name.find(options.only) == std::string::npos) continue;
    SampleModule module = make();
    module.name = name;
    BenchmarkModule(module, options, recording);
  }
  std::printf("\n");
  Recording distances("build/dev/benchmarks/reference_benchmark", "activations");
  BenchmarkLoss(options, distances);
  recording.Write(options.record, options.rounds);
  distances.Write(options.record_of_distances, options.rounds);
  return 0;
}

}  // namespace
}  // namespace egeria::reference

int main(int argc, char** argv) {
  try {
    return egeria::reference::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

// Step time of ResNet-56 (batch 64, one rank, one thread) with a frozen prefix against none; the time of a
// reducer rebuild and of a commit tick. Interleaved: every round runs each variant once, and ratios are taken
// within a round. usage: step_time_benchmark [ROUNDS [STEPS [RECORD]]]; RECORD is a file for docs/results/measured.

#include <ATen/Parallel.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "tests/benchmarks/recording.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"
#include "worker/commit/committer.h"
#include "worker/commit/process_group.h"
#include "worker/session/session.h"
#include "worker/trainer/replica.h"

namespace egeria {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

testing::Recording recording("build/dev/benchmarks/step_time_benchmark");

void Print(const char* what, std::vector<double> values, const char* unit) {
  recording.Add(what, values, unit);
  std::sort(values.begin(), values.end());
  std::printf("%-52s min %8.3f  median %8.3f  max %8.3f %s\n", what, values.front(), values[values.size() / 2],
              values.back(), unit);
}

// ResNet-56 with every block a layer module: 28 that can freeze and the head.
trainer::ReplicaOptions BlockwiseResNet56() {
  trainer::ReplicaOptions options;
  options.model = "resnet56";
  options.partition.patterns.push_back("stem");
  for (int stage = 1; stage <= 3; ++stage) {
    for (int block = 0; block < 9; ++block) {
      options.partition.patterns.push_back("stage" + std::to_string(stage) + ".block" + std::to_string(block));
    }
  }
  options.partition.patterns.push_back("head");
  return options;
}

void BenchmarkSteps(int rounds, int steps) {
  auto replica = trainer::Replica::Make(BlockwiseResNet56(), nullptr).value();
  replica->SetTraining(true);
  replica->SetLearningRate(1e-4);
  worker::SessionParts parts;
  parts.freezer = &replica->freezer();
  parts.reducer = &replica->reducer();
  auto session = worker::Session::Start(std::move(parts)).value();
  const at::Tensor images = at::randn({64, 3, 32, 32});
  const at::Tensor labels = at::randint(10, {64}, at::kLong);

  auto run_steps = [&](int count) {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) {
      session->BeginStep();
      replica->ZeroGrad();
      const at::Tensor loss = at::nll_loss(at::log_softmax(session->Forward(images), 1), labels);
      session->BeforeBackward(loss);
      loss.backward();
      replica->optimizer().step();
      EGERIA_CHECK(session->EndStep(loss, {1e-4}).ok());
    }
    return MillisecondsSince(start) / count;
  };

  const std::vector<int> prefixes = {0, 10, 19, 28};
  std::map<int, std::vector<double>> ratios;
  std::vector<double> plain;
  for (int round = 0; round < rounds; ++round) {
    std::map<int, double> milliseconds;
    for (int prefix : prefixes) {
      EGERIA_CHECK(replica->freezer().Apply(prefix).ok());
      EGERIA_CHECK(session->RebuildReducer().ok());
      run_steps(1);  // the first step after a switch is slower
      milliseconds[prefix] = run_steps(steps);
    }
    plain.push_back(milliseconds[0]);
    for (int prefix : prefixes) ratios[prefix].push_back(100 * milliseconds[prefix] / milliseconds[0]);
  }
  Print("step, nothing frozen", plain, "ms");
  for (int prefix : prefixes) {
    if (prefix == 0) continue;
    const std::string what = "step, " + std::to_string(prefix) + " of 28 blocks frozen / nothing frozen";
    Print(what.c_str(), ratios[prefix], "%");
  }
  EGERIA_CHECK(session->Stop(true).ok());
}

// Runs `body(rank, store)` as two ranks, threads over one store.
template <typename Body>
void OnTwoRanks(Body body) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::thread other([&] { body(1, store); });
  body(0, store);
  other.join();
}

void BenchmarkCommit(int ticks) {
  std::vector<double> microseconds;
  OnTwoRanks([&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    auto group = worker::MakeGlooGroup({store, rank, 2}, "commit", std::chrono::seconds(60)).value();
    worker::Committer committer(group, PlanId(0));
    for (int i = 0; i < ticks; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // a short training step
      const auto start = Clock::now();
      EGERIA_CHECK(committer.Tick({}).ok());
      if (rank == 0 && i > 10) microseconds.push_back(MillisecondsSince(start) * 1e3);
    }
    EGERIA_CHECK(committer.Stop().ok());
  });
  Print("commit tick, 2 ranks, steps of 2 ms", microseconds, "us");
}

// 25 million parameters in 160 tensors, of which ever fewer are active.
void BenchmarkRebuild(int rounds) {
  std::vector<double> milliseconds;
  OnTwoRanks([&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    auto group = worker::MakeGlooGroup({store, rank, 2}, "gradients", std::chrono::seconds(60)).value();
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 160; ++i) parameters.push_back(at::zeros({395, 395}).requires_grad_(true));
    worker::GradientReducer reducer(group);
    for (int i = 0; i < rounds; ++i) {
      const std::vector<at::Tensor> active(parameters.begin() + i % 100, parameters.end());
      const auto start = Clock::now();
      EGERIA_CHECK(reducer.Rebuild(active, {}).ok());
      if (rank == 0) milliseconds.push_back(MillisecondsSince(start));
    }
  });
  Print("reducer rebuild, 2 ranks, 25 M parameters", milliseconds, "ms");
}

}  // namespace
}  // namespace egeria

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 5;
  at::set_num_threads(1);
  egeria::BenchmarkSteps(rounds, steps);
  egeria::BenchmarkCommit(500);
  egeria::BenchmarkRebuild(50);
  egeria::recording.Write(argc > 3 ? argv[3] : "", rounds);
  return 0;
}

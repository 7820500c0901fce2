// Plays the native trainer's part in the conformance list: trains the scenarios of tests/conformance/scenarios.py with
// its session, two ranks as threads of this process, and writes their records.
//
//   conformance_rank FOLDER SCENARIOS    (a JSON object: steps, sampled_module, samples, scenarios)
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "tests/support/fake_agent.h"
#include "tests/support/ranks.h"
#include "tests/worker/session/toy_rank.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "worker/commit/parameter_checksum.h"

namespace egeria::testing {
namespace {

using nlohmann::json;
using worker::LayerModule;
using worker::NamedTensor;

constexpr int kRanks = 2;
constexpr int kNoSuchModule = 99;

uint64_t HashOf(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& entry : named) tensors.push_back(entry.tensor);
  return worker::HashTensors(tensors);
}

// The rank that is to fail is told to freeze more modules than there are.
worker::PlanSchedule PlansOf(const json& scenario, int rank) {
  std::vector<worker::PlanSchedule::Entry> entries;
  for (const json& plan : scenario["plans"]) entries.push_back({plan[0].get<int64_t>(), plan[1].get<int>()});
  if (scenario["fails_on"] == rank) entries.front().frozen_prefix = kNoSuchModule;
  return *worker::PlanSchedule::Make(std::move(entries), kNoSuchModule + 1);
}

void NoteStep(ToyRank* rank, json* record) {
  (*record)["loss"].push_back(rank->loss());
  (*record)["prefix"].push_back(rank->session().totals().frozen_prefix);
  json parameters = json::array(), buffers = json::array();
  for (const LayerModule& module : rank->model().modules) {
    parameters.push_back(HashOf(module.parameters()));
    buffers.push_back(HashOf(module.buffers()));
  }
  (*record)["parameters"].push_back(std::move(parameters));
  (*record)["buffers"].push_back(std::move(buffers));
}

void NoteReadings(const FakeLine& line, json* record) {
  for (const worker::Sample& sample : line.samples()) {
    const auto* const values = reinterpret_cast<const float*>(sample.tensors.back().data());
    const int64_t count = sample.tensors[0].spec.shape[0];
    (*record)["gram"][std::to_string(sample.step)] = std::vector<float>(values, values + count * count);
  }
  for (const worker::GradientReading& reading : line.gradient_readings()) {
    (*record)["gradients"][std::to_string(reading.step)] = {{"mean_of_squares", reading.mean_of_squares},
                                                            {"square_of_mean", reading.square_of_mean},
                                                            {"progress", reading.progress},
                                                            {"parts", reading.parts},
                                                            {"samples", reading.samples}};
  }
}

json Train(const json& order, const json& scenario, const worker::GroupMember& member) {
  const bool reads = scenario["readings"].get<bool>();
  FakeLine line(Generation(0), PlanId(0), ToyRank::kModules);
  if (reads) {
    line.Want(worker::SamplingRequest{ModuleIndex(order["sampled_module"].get<int>()), ModuleIndex(0), 1,
                                      order["samples"].get<int>(), 1});
    line.Want(worker::GradientRequest{ModuleIndex(0), 1, 1});
  }
  json record = {{"switches", json::array()}, {"gram", json::object()}, {"gradients", json::object()}, {"undone", 0}};
  ToyRank::Saved saved;
  std::unique_ptr<ToyRank> rank;
  const auto start = [&](const ToyRank::Saved* resume) {
    const std::string part = resume == nullptr ? "whole" : "resumed";
    rank = std::make_unique<ToyRank>(worker::GroupMember{c10::make_intrusive<c10d::PrefixStore>(
                                                             scenario["name"].get<std::string>() + part, member.store),
                                                         member.rank, member.world_size},
                                     reads ? &line : nullptr,
                                     ToyRank::Options{.plans = PlansOf(scenario, member.rank),
                                                      .dropout = 0,
                                                      .resume = resume,
                                                      .freeze_first = scenario["freeze_first"].get<int>()});
  };
  const auto note_session = [&] {
    for (const worker::Switch& s : rank->session().switches()) {
      record["switches"].push_back({s.step, s.frozen_prefix, s.unfreeze, s.ranks_identical});
    }
    record["undone"] = record["undone"].get<int64_t>() + rank->session().totals().switches_undone;
    EGERIA_CHECK(rank->session().Stop(true).ok());
  };
  start(nullptr);
  for (int64_t step = 1; step <= order["steps"].get<int64_t>(); ++step) {
    rank->Step();
    NoteStep(rank.get(), &record);
    if (scenario["resumes_at"] != step) continue;
    saved = rank->Save();
    note_session();
    start(&saved);
  }
  note_session();
  NoteReadings(line, &record);
  return record;
}

void Main(const std::string& folder, const json& order) {
  RunRanks(kRanks, [&](const worker::GroupMember& member) {
    json records;
    for (const json& scenario : order["scenarios"]) {
      records[scenario["name"].get<std::string>()] = Train(order, scenario, member);
    }
    std::ofstream(folder + "/rank" + std::to_string(member.rank) + ".json") << records;
  });
}

}  // namespace
}  // namespace egeria::testing

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  egeria::testing::Main(argv[1], nlohmann::json::parse(argv[2]));
  return 0;
}

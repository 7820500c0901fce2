// Random and mutated graphs through everything that a graph from the network goes through: parsing,
// conversion, validation, binding, lowering and a run on small inputs. Nothing may crash, and every refusal
// has a name. EGERIA_FUZZ_SECONDS sets how long each test runs (default 5), EGERIA_FUZZ_SEED where it starts.
#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/graph/graph_proto.h"
#include "tests/common/reference/graph_fuzz_torch.h"
#include "tests/support/reference_graphs.h"

namespace egeria::reference {
namespace {

using graph::Argument;
using Random = std::mt19937_64;

volatile uint64_t current_seed = 0;

void PrintSeed() {
  char text[96];
  const int length =
      std::snprintf(text, sizeof(text), "\ngraph fuzzer: seed %llu\n", static_cast<unsigned long long>(current_seed));
  (void)!write(STDERR_FILENO, text, static_cast<size_t>(length));
}

#if !defined(__SANITIZE_ADDRESS__)
void OnCrash(int number) {
  PrintSeed();
  signal(number, SIG_DFL);
  raise(number);
}
#endif

// Processor time after which SIGPROF ends the test: the graph has an operator that does not come to an end.
constexpr int kMaxSecondsOfAGraph = 60;
void SetTimer(int seconds) {
  const itimerval timer = {{0, 0}, {seconds, 0}};
  setitimer(ITIMER_PROF, &timer, nullptr);
}

int64_t EnvironmentNumber(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

const std::vector<std::string>& KnownNames() {
  static const auto* const names = new std::vector<std::string>{
      "OK",         "NOT_PARSED", "GRAPH_TOO_LARGE", "BAD_NAME",  "UNDEFINED_VALUE", "DUPLICATE_VALUE",
      "UNKNOWN_OP", "BAD_SHAPE",  "BAD_DTYPE",       "NO_OUTPUT", "BAD_ARGUMENT",    "REFERENCE_FAILED"};
  return *names;
}

class GraphFuzz : public ::testing::Test {
 protected:
  GraphFuzz() {
    InstallGuardPages();
#if !defined(__SANITIZE_ADDRESS__)
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL, SIGPROF}) signal(number, OnCrash);
#endif
  }

  // Calls `body` with a generator of a new seed until the time is over; counts what it returns.
  void Repeat(const std::function<std::string(Random&)>& body) {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(EnvironmentNumber("EGERIA_FUZZ_SECONDS", 5));
    const bool one = std::getenv("EGERIA_FUZZ_ONE") != nullptr;  // only the seed that is given
    uint64_t seed = static_cast<uint64_t>(EnvironmentNumber("EGERIA_FUZZ_SEED", 1));
    int64_t rounds = 0;
    do {
      current_seed = seed++;
      Random random(current_seed);
      SetTimer(kMaxSecondsOfAGraph);
      const std::string outcome = body(random);
      ++outcomes_[outcome];
      ++rounds;
      EXPECT_THAT(KnownNames(), ::testing::Contains(outcome)) << "seed " << current_seed;
    } while (!one && std::chrono::steady_clock::now() < end);
    SetTimer(0);
    std::printf("%ld graphs:", rounds);
    for (const auto& [name, count] : outcomes_) std::printf(" %s %ld", name.c_str(), count);
    std::printf("\n");
  }

  std::map<std::string, int64_t> outcomes_;
};

std::vector<graph::ModuleGraph> Seeds() {
  return {testing::BasicBlock(4, 6).graph, testing::BasicBlock(4, 6, testing::Spelling::kTraced).graph,
          testing::Mlp(8).graph};
}

int64_t Below(Random& random, size_t bound) { return static_cast<int64_t>(random() % bound); }

int64_t OddInteger(Random& random) {
  static constexpr int64_t kOdd[] = {-1,      0,         1,         2,           3,         7,
                                     1 << 16, INT32_MAX, INT32_MIN, INT64_MAX,   INT64_MIN, int64_t{1} << 31,
                                     1 << 28, -1 << 28,  1LL << 62, -(1LL << 62)};
  return kOdd[Below(random, std::size(kOdd))];
}

Argument RandomArgument(Random& random, const graph::ModuleGraph& graph, int depth = 0) {
  switch (Below(random, depth < 2 ? 8 : 7)) {
    case 0: return Argument{graph::None{}};
    case 1: {
      const graph::Node& node = graph.nodes[Below(random, graph.nodes.size())];
      return Argument{graph::ValueRef{node.outputs.empty() ? graph.inputs[0].name : node.outputs[0]}};
    }
    case 2: return Argument{OddInteger(random)};
    case 3: return Argument{static_cast<double>(OddInteger(random)) * 0.37};
    case 4: return Argument{Below(random, 2) == 0};
    case 5: return Argument{std::string("tanh")};
    case 6: return Argument{static_cast<DataType>(Below(random, 11))};
    default: {
      graph::ArgumentList list;
      for (int64_t i = Below(random, 5); i > 0; --i) list.push_back(RandomArgument(random, graph, depth + 1));
      return Argument{std::move(list)};
    }
  }
}

void MutateGraph(Random& random, graph::ModuleGraph* graph) {
  graph::Node& node = graph->nodes[Below(random, graph->nodes.size())];
  switch (Below(random, 8)) {
    case 0:
      if (!node.args.empty()) node.args[Below(random, node.args.size())] = RandomArgument(random, *graph);
      break;
    case 1: node.args.push_back(RandomArgument(random, *graph)); break;
    case 2:
      if (!node.args.empty()) node.args.pop_back();
      break;
    case 3: {
      const auto allowed = graph::AllowedOperators();
      const std::string name(allowed[Below(random, allowed.size())]);
      node.op = name.substr(0, name.find('.'));
      node.overload = name.find('.') == std::string::npos ? "" : name.substr(name.find('.') + 1);
      break;
    }
    case 4: std::swap(node, graph->nodes[Below(random, graph->nodes.size())]); break;
    case 5:
      if (!graph->weights.empty()) {
        TensorSpec& spec = graph->weights[Below(random, graph->weights.size())];
        if (!spec.shape.empty()) spec.shape[Below(random, spec.shape.size())] = OddInteger(random);
      }
      break;
    case 6: graph->inputs[0].shape[Below(random, graph->inputs[0].shape.size())] = 1 + Below(random, 9); break;
    default: node.kwargs["dim"] = RandomArgument(random, *graph); break;
  }
}

TEST_F(GraphFuzz, RandomGraphsOfAllowedOperatorsNeverCrash) {
  Repeat([](Random& random) { return BindAndRun(RandomGraph(random), random); });
  EXPECT_GT(outcomes_["OK"], 0);
  EXPECT_GT(outcomes_["REFERENCE_FAILED"], 0);
}

TEST_F(GraphFuzz, MutatedGraphsNeverCrash) {
  const std::vector<graph::ModuleGraph> seeds = Seeds();
  Repeat([&](Random& random) {
    graph::ModuleGraph graph = seeds[Below(random, seeds.size())];
    for (int64_t i = 1 + Below(random, 3); i > 0; --i) MutateGraph(random, &graph);
    return BindAndRun(graph, random);
  });
  EXPECT_GT(outcomes_["OK"], 0);
  EXPECT_GT(outcomes_["BAD_ARGUMENT"], 0);
}

TEST_F(GraphFuzz, MutatedBytesNeverCrash) {
  const google::protobuf::LogSilencer silencer;  // it reports every byte that is no UTF-8
  std::vector<std::string> seeds;
  for (const graph::ModuleGraph& graph : Seeds()) {
    v1::ModuleGraph proto;
    graph::ToProto(graph, &proto);
    seeds.push_back(proto.SerializeAsString());
  }
  Repeat([&](Random& random) -> std::string {
    std::string bytes = seeds[Below(random, seeds.size())];
    for (int64_t i = 1 + Below(random, 4); i > 0; --i) {
      const size_t at = static_cast<size_t>(Below(random, bytes.size()));
      switch (Below(random, 4)) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes[at] ^= static_cast<char>(1 << Below(random, 8)); break;
        case 2: bytes.insert(at, bytes.substr(static_cast<size_t>(Below(random, bytes.size())), 8)); break;
        default: bytes.erase(at, static_cast<size_t>(1 + Below(random, 8))); break;
      }
      if (bytes.empty()) bytes = "x";
    }
    v1::ModuleGraph proto;
    if (!proto.ParseFromString(bytes)) return "NOT_PARSED";  // gRPC refuses it
    const auto graph = graph::FromProto(proto);
    if (!graph.ok()) {
      const std::string message(graph.status().message());
      return message.substr(1, message.find(']') - 1);
    }
    return BindAndRun(*graph, random);
  });
  EXPECT_GT(outcomes_["OK"], 0);
  EXPECT_GT(outcomes_["UNDEFINED_VALUE"], 0);
}

}  // namespace
}  // namespace egeria::reference

#if defined(__SANITIZE_ADDRESS__)
// Called by the sanitizer before it reports.
extern "C" void __asan_on_error() { egeria::reference::PrintSeed(); }
#endif

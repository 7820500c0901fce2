#ifndef EGERIA_TESTS_COMMON_REFERENCE_GRAPH_FUZZ_TORCH_H_
#define EGERIA_TESTS_COMMON_REFERENCE_GRAPH_FUZZ_TORCH_H_

#include <cstdint>
#include <random>
#include <string>

#include "common/graph/graph.h"

// The half of the graph fuzzer that knows torch (the other one knows protobuf).
namespace egeria::reference {

// From now on each tensor ends at a page that cannot be touched, so that an operator which reads or writes
// beyond a tensor's end crashes at once; a tensor of more than 16 MiB is refused. Once per process.
void InstallGuardPages();

// A graph of a few allowed operators, with arguments of the kinds that their schemas ask for and values that
// are often odd.
graph::ModuleGraph RandomGraph(std::mt19937_64& random);

// Validates, binds and runs the graph on a small random input and random weights, with every backend. Returns
// "OK" if the baseline ran, else the name of the error, without brackets; "?" for an error without a name.
std::string BindAndRun(const graph::ModuleGraph& graph, std::mt19937_64& random);

}  // namespace egeria::reference

#endif  // EGERIA_TESTS_COMMON_REFERENCE_GRAPH_FUZZ_TORCH_H_

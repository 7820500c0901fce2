#ifndef EGERIA_COMMON_GRAPH_GRAPH_JSON_H_
#define EGERIA_COMMON_GRAPH_GRAPH_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/graph/graph.h"

namespace egeria::graph {

// Reads a graph in protobuf's JSON, as the Python package exports it: egeria.v1.ModuleGraph. This header is
// free of protobuf, so that files which include torch may use it.
// Errors: INVALID_ARGUMENT [BAD_GRAPH] no such JSON, with the place; those of FromProto() and Validate().
absl::StatusOr<ModuleGraph> ParseGraphJson(const std::string& json);

}  // namespace egeria::graph

#endif  // EGERIA_COMMON_GRAPH_GRAPH_JSON_H_

#ifndef EGERIA_COMMON_GRAPH_GRAPH_PROTO_H_
#define EGERIA_COMMON_GRAPH_GRAPH_PROTO_H_

#include "absl/status/statusor.h"
#include "common/graph/graph.h"
#include "egeria/v1/graph.pb.h"

// Conversions between the graph and tensor structs and their wire form. Never include this in a file that
// includes torch.
namespace egeria {

void ToProto(const TensorSpec& spec, v1::TensorSpec* proto);
// Errors: INVALID_ARGUMENT [BAD_DTYPE].
absl::StatusOr<TensorSpec> FromProto(const v1::TensorSpec& proto);

namespace graph {

void ToProto(const ModuleGraph& graph, v1::ModuleGraph* proto);
// Checks only the form; see Validate() for the rest.
// Errors: INVALID_ARGUMENT [BAD_ARGUMENT] an argument of no kind or too deep a list; [BAD_DTYPE].
absl::StatusOr<ModuleGraph> FromProto(const v1::ModuleGraph& proto);

}  // namespace graph
}  // namespace egeria

#endif  // EGERIA_COMMON_GRAPH_GRAPH_PROTO_H_

#include "common/graph/graph_json.h"

#include "common/base/status.h"
#include "common/graph/graph_proto.h"
#include "google/protobuf/util/json_util.h"

namespace egeria::graph {

absl::StatusOr<ModuleGraph> ParseGraphJson(const std::string& json) {
  v1::ModuleGraph proto;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &proto);
  if (!status.ok()) return NamedError(absl::StatusCode::kInvalidArgument, "BAD_GRAPH", status.ToString());
  EGERIA_ASSIGN_OR_RETURN(ModuleGraph graph, FromProto(proto));
  EGERIA_RETURN_IF_ERROR(Validate(graph));
  return graph;
}

}  // namespace egeria::graph

#ifndef EGERIA_COMMON_RPC_GRPC_STATUS_H_
#define EGERIA_COMMON_RPC_GRPC_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace egeria::rpc {

// The two libraries' codes have the same numbers and meanings; the message is kept. Messages to gRPC are cut
// at 4,096 bytes, because they travel in a header.
absl::Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

// "STALE_GENERATION" of "[STALE_GENERATION] a newer one ..."; empty where the message has no such name.
// Valid while the status is.
absl::string_view ErrorName(const absl::Status& status);

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_GRPC_STATUS_H_

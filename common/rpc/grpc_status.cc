#include "common/rpc/grpc_status.h"

#include <string>

namespace egeria::rpc {

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  constexpr size_t kMaxMessage = 4096;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message().substr(0, kMaxMessage)));
}

absl::string_view ErrorName(const absl::Status& status) {
  const absl::string_view message = status.message();
  if (message.empty() || message.front() != '[') return {};
  const size_t end = message.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", 1);
  if (end == absl::string_view::npos || message[end] != ']') return {};
  return message.substr(1, end - 1);
}

}  // namespace egeria::rpc

#ifndef EGERIA_COMMON_RPC_CREDENTIALS_H_
#define EGERIA_COMMON_RPC_CREDENTIALS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/rpc/address.h"
#include "common/rpc/tls_files.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace egeria::rpc {

// Who may connect to a server at `address`:
//   a Unix socket: everybody whom the file's permissions let in; TLS is not used;
//   with TLS files: whoever has a certificate of theirs;
//   loopback without TLS files: every process of this machine;
//   any other address without TLS files: everybody, and only if `insecure_allowed`.
// Errors: FAILED_PRECONDITION [INSECURE_ADDRESS] saying what to do; INVALID_ARGUMENT where only some of the
// files are given; NOT_FOUND where one cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFor(const Address& address,
                                                                              const TlsFiles& tls,
                                                                              bool insecure_allowed);

// The client's side of the same: TLS where files are given and the address is not a Unix socket. The
// server's certificate must name `address.host`.
// Errors: INVALID_ARGUMENT, NOT_FOUND as above.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFor(const Address& address,
                                                                                const TlsFiles& tls);

// `failure`, of a call to a server at `address` with these files, its message ending in what certificates may
// have to do with it: a server that turns a client away just closes the connection, which is all that gRPC says.
// Unchanged where the connection was not broken off while it was made.
absl::Status ExplainRefusal(const absl::Status& failure, const Address& address, const TlsFiles& tls);

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_CREDENTIALS_H_

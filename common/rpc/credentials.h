#ifndef EGERIA_COMMON_RPC_CREDENTIALS_H_
#define EGERIA_COMMON_RPC_CREDENTIALS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/rpc/address.h"
#include "common/rpc/tls_files.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace egeria::rpc {

// The credentials decide who may connect to a server at `address`:
//   A Unix socket lets in everybody whom the file's permissions let in; TLS is not used.
//   An address with TLS files lets in whoever has a certificate that their authority signed.
//   A loopback address without TLS files lets in every process of this machine.
//   Any other address without TLS files lets in everybody, and only if `insecure_allowed`.
// Errors: FAILED_PRECONDITION [INSECURE_ADDRESS] saying what to do; INVALID_ARGUMENT where only some of the
// files are given; NOT_FOUND where one cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFor(const Address& address,
                                                                              const TlsFiles& tls,
                                                                              bool insecure_allowed);

// The client's side uses TLS where files are given and the address is not a Unix socket. The server's certificate
// must name `address.host`.
// Errors: INVALID_ARGUMENT and NOT_FOUND for the same causes.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFor(const Address& address,
                                                                                const TlsFiles& tls);

// Adds to the `failure` of a call to `address` what certificates may have to do with it: a server that turns a client
// away just closes the connection, and gRPC tells no more than that. Returns `failure` unchanged unless the connection
// was broken off while it was made.
absl::Status ExplainRefusal(const absl::Status& failure, const Address& address, const TlsFiles& tls);

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_CREDENTIALS_H_

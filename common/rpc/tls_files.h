#ifndef EGERIA_COMMON_RPC_TLS_FILES_H_
#define EGERIA_COMMON_RPC_TLS_FILES_H_

#include <string>

#include "absl/status/status.h"

// Free of gRPC's headers, so that options of classes that are used next to LibTorch can hold it.
namespace egeria::rpc {

// Paths of PEM files for mutual TLS: each side shows a certificate and demands one that `ca` has signed.
struct TlsFiles {
  std::string ca;           // certificates that the other side's certificate must be signed by
  std::string certificate;  // this side's certificate chain
  std::string key;          // and its private key

  bool empty() const { return ca.empty() && certificate.empty() && key.empty(); }
};

// The files that EGERIA_TLS_CA, EGERIA_TLS_CERT and EGERIA_TLS_KEY name.
TlsFiles TlsFilesFromEnvironment();

// OK if there are none, or all three and they can be read.
// Errors: INVALID_ARGUMENT where only some are given; NOT_FOUND where one cannot be read.
absl::Status CheckTlsFiles(const TlsFiles& tls);

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_TLS_FILES_H_

#ifndef EGERIA_COMMON_RPC_CERTIFICATES_H_
#define EGERIA_COMMON_RPC_CERTIFICATES_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/rpc/tls_files.h"

// Free of gRPC's headers.
namespace egeria::rpc {

// Says what is wrong with the files, one sentence each: a certificate that has expired, is not valid yet or ends within
// a week, and a private key that others can read. Files that cannot be read are left out.
std::vector<std::string> TroublesOf(const TlsFiles& tls, absl::Time now);

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_CERTIFICATES_H_

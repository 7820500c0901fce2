#ifndef EGERIA_CONTROLLER_JOB_OWNERSHIP_H_
#define EGERIA_CONTROLLER_JOB_OWNERSHIP_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/rpc/peer.h"

// These say whose a job is. The rule is in proto/egeria/v1/controller.proto, at RegisterJobRequest.secret.
namespace egeria::controller {

inline constexpr size_t kMinSecret = 16;
inline constexpr size_t kMaxSecret = 256;

// The SHA-256 of a secret, 32 bytes. Empty for an empty one.
std::string HashOfSecret(absl::string_view secret);

// The journal says this of a job. Where it says nothing the job belongs to the controller's own user.
struct Ownership {
  std::string owner;
  std::string secret_hash;

  // Errors: PERMISSION_DENIED [NOT_THE_OWNER] the caller is not the owner, and shows another secret.
  absl::Status Check(const rpc::Peer& caller, absl::string_view secret) const;
};

// This process, as the peer of a call that it makes itself.
rpc::Peer ThisProcess();

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_OWNERSHIP_H_

#include "controller/job/ownership.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "openssl/crypto.h"
#include "openssl/sha.h"

namespace egeria::controller {

std::string HashOfSecret(absl::string_view secret) {
  if (secret.empty()) return "";
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(secret.data()), secret.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return hash;
}

absl::Status Ownership::Check(const rpc::Peer& caller, absl::string_view secret) const {
  const bool unowned = owner.empty() && secret_hash.empty();
  const std::string owned_by = unowned ? ThisProcess().identity : owner;
  if (!owned_by.empty() && caller.identity == owned_by) return absl::OkStatus();
  const std::string shown = HashOfSecret(secret);
  const bool same = !shown.empty() && shown.size() == secret_hash.size() &&
                    CRYPTO_memcmp(shown.data(), secret_hash.data(), shown.size()) == 0;
  if (same) return absl::OkStatus();
  return NamedError(absl::StatusCode::kPermissionDenied, "NOT_THE_OWNER", "this job was registered by another user",
                    secret.empty() ? ", and no secret of it was shown" : ", and its secret is another one");
}

rpc::Peer ThisProcess() {
  rpc::Peer peer;
  peer.uid = geteuid();
  peer.pid = getpid();
  peer.identity = absl::StrCat("uid:", *peer.uid);
  peer.place = absl::StrCat("pid:", peer.pid);
  return peer;
}

}  // namespace egeria::controller

#ifndef EGERIA_COMMON_RPC_SELF_CHECK_H_
#define EGERIA_COMMON_RPC_SELF_CHECK_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/address.h"

namespace egeria::rpc {

// Lets this process have as many descriptors as the system allows it. gRPC never accepts again at a port once it has
// found none.
void AllowDescriptors();

// Looks now and then whether the servers of this process can be reached at their addresses, as a client would.
// Thread-compatible.
class SelfCheck {
 public:
  struct Options {
    absl::Duration every = absl::Seconds(10);
    absl::Duration patience = absl::Seconds(2);    // for an answer
    absl::Duration lost_after = absl::Minutes(1);  // without an answer
  };

  explicit SelfCheck(std::vector<Address> addresses) : SelfCheck(std::move(addresses), Options()) {}
  SelfCheck(std::vector<Address> addresses, const Options& options)
      : addresses_(std::move(addresses)), options_(options) {}

  // Looks, if it is time to, and waits for answers then. Logs every change.
  void Look();

  // OK, or UNAVAILABLE: an address is deaf, which means that nobody answers there.
  const absl::Status& hearing() const { return hearing_; }
  // OK, or UNAVAILABLE: a socket's path has vanished, or is another process's. Streams that are open go on.
  const absl::Status& paths() const { return paths_; }
  // An address has been deaf for so long that the process had better be started again.
  bool IsLost() const;

 private:
  const std::vector<Address> addresses_;
  const Options options_;
  absl::Time next_look_ = absl::InfinitePast();  // monotonic, as is the next
  absl::Time deaf_since_ = absl::InfiniteFuture();
  absl::Status hearing_, paths_;
};

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_SELF_CHECK_H_

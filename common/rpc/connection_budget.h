#ifndef EGERIA_COMMON_RPC_CONNECTION_BUDGET_H_
#define EGERIA_COMMON_RPC_CONNECTION_BUDGET_H_

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/thread/mutex.h"

namespace egeria::rpc {

// Counts the connections that a gRPC server has been given, by the user or the address that they come from. The server
// closes them and tells nobody: the kernel says whether a descriptor still is the socket that it was. One peer may have
// half of all. Thread-safe.
class ConnectionBudget {
 public:
  explicit ConnectionBudget(size_t most) : most_(most) {}

  // 8,192, or three quarters of the descriptors that this process may have: a journal needs some, too.
  static size_t Most();

  // Adds a connected socket. Returns false, and adds nothing, where there are too many, of this peer or in all.
  bool Add(int descriptor, absl::string_view peer);

 private:
  struct Connection {
    int descriptor;
    ino_t socket;
    std::string peer;
  };
  bool HasRoomFor(absl::string_view peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t most_;
  Mutex mutex_;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex_);  // with some that have ended
};

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_CONNECTION_BUDGET_H_

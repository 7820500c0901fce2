#ifndef EGERIA_COMMON_RPC_CONNECTION_BUDGET_H_
#define EGERIA_COMMON_RPC_CONNECTION_BUDGET_H_

#include <sys/types.h>

#include <cstddef>
#include <vector>

namespace egeria::rpc {

// Counts the Unix connections that a gRPC server has been given, by user. The server closes them and tells nobody: the
// kernel says whether a descriptor still is the socket that it was. One user may have half of all. Owned by the thread
// that accepts.
class ConnectionBudget {
 public:
  explicit ConnectionBudget(size_t most) : most_(most) {}

  // 8,192, or three quarters of the descriptors that this process may have: a journal needs some, too.
  static size_t Most();

  // Adds a connected socket. Returns false, and adds nothing, where there are too many, of this user or in all.
  bool Add(int descriptor, uid_t user);

 private:
  struct Connection {
    int descriptor;
    ino_t socket;
    uid_t user;
  };
  bool HasRoomFor(uid_t user) const;

  const size_t most_;
  std::vector<Connection> connections_;  // with some that have ended
};

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_CONNECTION_BUDGET_H_

#ifndef EGERIA_COMMON_RPC_ACCEPTOR_H_
#define EGERIA_COMMON_RPC_ACCEPTOR_H_

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"

namespace egeria::rpc {

// Accepts connections at listening sockets, in a thread of its own. While the process has no descriptors left it waits
// for some, and says so once.
// Thread-compatible. Stop() is idempotent; the destructor calls it.
class Acceptor {
 public:
  // Takes a connected socket, which is the taker's from then on; or closes it, and returns why it was refused. The
  // accepting thread calls it.
  using Take = absl::AnyInvocable<std::string(int descriptor)>;

  // `address` is for people. The sockets listen, do not block, and are the acceptor's.
  Acceptor(std::string address, std::vector<int> listening);
  ~Acceptor() { Stop(); }

  void Start(Take take);
  // Accepts no more, and closes the listening sockets.
  void Stop();

 private:
  void AcceptUntilStopped();
  // Waits until somebody connects, or, without `for_connections`, a moment. False when the thread is to end.
  bool Wait(bool for_connections, std::vector<int>* ready) const;

  const std::string address_;
  std::vector<int> listening_;
  int stopping_ = -1;  // an event descriptor
  Take take_;
  std::thread thread_;
};

}  // namespace egeria::rpc

#endif  // EGERIA_COMMON_RPC_ACCEPTOR_H_

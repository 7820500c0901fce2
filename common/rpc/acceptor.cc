#include "common/rpc/acceptor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/thread/thread.h"

namespace egeria::rpc {
namespace {

constexpr int kRetryMilliseconds = 100;

bool IsShortage(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

// Lets one line a second through.
class Seldom {
 public:
  bool Now() {
    const absl::Time now = absl::Now();
    if (now < next_ && next_ < now + absl::Seconds(2)) return false;
    next_ = now + absl::Seconds(1);
    return true;
  }

 private:
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace

Acceptor::Acceptor(std::string address, std::vector<int> listening)
    : address_(std::move(address)),
      listening_(std::move(listening)),
      stopping_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Acceptor::Start(Take take) {
  take_ = std::move(take);
  thread_ = StartThread("accept", [this] { AcceptUntilStopped(); });
}

bool Acceptor::Wait(bool for_connections, std::vector<int>* ready) const {
  ready->clear();
  std::vector<pollfd> waiting = {{stopping_, POLLIN, 0}};
  for (const int each : listening_) {
    if (for_connections) waiting.push_back({each, POLLIN, 0});
  }
  poll(waiting.data(), waiting.size(), for_connections ? -1 : kRetryMilliseconds);
  for (const pollfd& each : waiting) {
    if (each.revents != 0) ready->push_back(each.fd);
  }
  return waiting[0].revents == 0;
}

void Acceptor::AcceptUntilStopped() {
  bool short_of = false;
  Seldom seldom;
  std::vector<int> ready;
  while (Wait(!short_of, &ready)) {
    if (short_of) ready = listening_;
    for (const int listening : ready) {
      const int descriptor = accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (descriptor < 0) {
        if (IsShortage(errno) && !std::exchange(short_of, true)) {
          LogError(address_, ": no connection can be accepted until others end: ", std::strerror(errno));
        } else if (!IsShortage(errno) && std::exchange(short_of, false)) {
          LogInfo(address_, ": connections are accepted again");
        }
        continue;
      }
      if (std::exchange(short_of, false)) LogInfo(address_, ": connections are accepted again");
      const std::string refused = take_(descriptor);
      if (!refused.empty() && seldom.Now()) LogWarning(address_, ": refused a connection of ", refused);
    }
  }
}

void Acceptor::Stop() {
  if (thread_.joinable()) {
    eventfd_write(stopping_, 1);
    thread_.join();
  }
  for (const int each : listening_) close(each);
  listening_.clear();
  if (stopping_ >= 0) close(std::exchange(stopping_, -1));
}

}  // namespace egeria::rpc

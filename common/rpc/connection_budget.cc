#include "common/rpc/connection_budget.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>

namespace egeria::rpc {
namespace {

constexpr size_t kMost = 8'192;

// 0 for a descriptor that is closed.
ino_t SocketOf(int descriptor) {
  struct stat info;
  return fstat(descriptor, &info) == 0 ? info.st_ino : 0;
}

}  // namespace

size_t ConnectionBudget::Most() {
  rlimit descriptors;
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return kMost;
  return std::min<size_t>(kMost, descriptors.rlim_cur / 4 * 3);
}

bool ConnectionBudget::HasRoomFor(absl::string_view peer) const {
  const auto of_peer =
      std::count_if(connections_.begin(), connections_.end(), [peer](const auto& each) { return each.peer == peer; });
  return connections_.size() < most_ && static_cast<size_t>(of_peer) < most_ / 2;
}

bool ConnectionBudget::Add(int descriptor, absl::string_view peer) {
  const MutexLock lock(&mutex_);
  if (!HasRoomFor(peer)) {
    std::erase_if(connections_, [](const auto& each) { return SocketOf(each.descriptor) != each.socket; });
    if (!HasRoomFor(peer)) return false;
  }
  connections_.push_back({descriptor, SocketOf(descriptor), std::string(peer)});
  return true;
}

}  // namespace egeria::rpc

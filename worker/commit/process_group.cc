#include "worker/commit/process_group.h"

#include <cstdlib>
#include <exception>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"
#include "worker/commit/torch_status.h"

namespace egeria::worker {
namespace {

using c10d::ProcessGroup;

// Returns the member's view of the store for one group, so that keys of different groups do not meet.
c10::intrusive_ptr<c10d::Store> StoreOf(const GroupMember& member, const std::string& name) {
  return c10::make_intrusive<c10d::PrefixStore>(name, member.store);
}

// The group is over the network interfaces that GLOO_SOCKET_IFNAME names, separated by commas, as in Python; else over
// the one that the host's name leads to.
c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> GlooOptions(std::chrono::milliseconds timeout) {
  using Gloo = c10d::ProcessGroupGloo;
  const char* const interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  if (interfaces == nullptr || *interfaces == '\0') return Gloo::Options::create_default(timeout);
  auto options = Gloo::Options::create(timeout);
  std::vector<std::string> names = absl::StrSplit(interfaces, ',', absl::SkipEmpty());
  for (const std::string& name : names) options->devices.push_back(Gloo::createDeviceForInterface(name));
  return options;
}

ProcessGroupPtr GroupOverGloo(const GroupMember& member, const std::string& name, std::chrono::milliseconds timeout) {
  const auto store = StoreOf(member, name);
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, member.rank, member.world_size, GlooOptions(timeout));
  auto group = c10::make_intrusive<ProcessGroup>(store, member.rank, member.world_size);
  group->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  group->setGroupName(name);
  return group;
}

}  // namespace

absl::StatusOr<ProcessGroupPtr> MakeGlooGroup(const GroupMember& member, const std::string& name,
                                              std::chrono::milliseconds timeout) {
  try {
    return GroupOverGloo(member, name, timeout);
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kUnavailable, "GROUP_FAILED", "rank ", member.rank, " of ", member.world_size,
                      " could not join group '", name, "': ", MessageOf(error));
  }
}

absl::StatusOr<ProcessGroupPtr> MakeDeviceGroup(const GroupMember& member, const std::string& name,
                                                c10::DeviceType device, std::chrono::milliseconds timeout) {
  EGERIA_ASSIGN_OR_RETURN(ProcessGroupPtr group, MakeGlooGroup(member, name, timeout));
  if (device == c10::DeviceType::CPU) return group;
  if (device != c10::DeviceType::CUDA) {
    return NamedError(absl::StatusCode::kUnimplemented, "NO_BACKEND", "no collectives for device type '",
                      c10::DeviceTypeName(device, /*lower_case=*/true), "' in this build");
  }
  GroupMember on_device = member;
  on_device.store = StoreOf(member, name + "/device");
  EGERIA_ASSIGN_OR_RETURN(c10::intrusive_ptr<c10d::Backend> nccl, internal::MakeNcclBackend(on_device, timeout));
  group->setBackend(device, ProcessGroup::BackendType::NCCL, nccl);
  return group;
}

}  // namespace egeria::worker

#include "worker/trainer/launch.h"

#include <cstdlib>
#include <exception>
#include <optional>

#include "ATen/DeviceAccelerator.h"
#include "absl/strings/numbers.h"
#include "common/base/status.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"
#include "worker/commit/torch_status.h"

namespace egeria::trainer {
namespace {

using worker::MessageOf;

constexpr std::chrono::minutes kTrainingTimeout{10};
constexpr std::chrono::minutes kCommitTimeout{10};

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<int> IntegerFrom(const char* name, int lowest, int highest) {
  const std::string text = Environment(name);
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < lowest || value > highest) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_ENVIRONMENT", name, "='", text,
                      "' is not a number from ", lowest, " to ", highest,
                      ": start several ranks with torchrun or egeria-run");
  }
  return value;
}

// torchrun's agent keeps a server for the whole life of the job and says so; otherwise rank 0 does.
absl::StatusOr<c10::intrusive_ptr<c10d::Store>> OpenStore(int rank, int world_size) {
  EGERIA_ASSIGN_OR_RETURN(const int port, IntegerFrom("MASTER_PORT", 1, 65535));
  const std::string host = Environment("MASTER_ADDR");
  if (host.empty()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_ENVIRONMENT", "MASTER_ADDR is not set");
  }
  const bool hosted = Environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = !hosted && rank == 0;
  options.waitWorkers = !hosted;
  if (!hosted) options.numWorkers = static_cast<size_t>(world_size);
  try {
    c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::TCPStore>(host, options);
    return store;
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kUnavailable, "NO_STORE", "cannot reach the job's store at ", host, ":", port,
                      ": ", MessageOf(error));
  }
}

}  // namespace

absl::StatusOr<Launch> JoinLaunch(int64_t restarts, c10::Device device) {
  Launch launch;
  if (Environment("RANK").empty() && Environment("WORLD_SIZE").empty()) {
    launch.member.store = c10::make_intrusive<c10d::HashStore>();
    return launch;
  }
  EGERIA_ASSIGN_OR_RETURN(launch.member.world_size, IntegerFrom("WORLD_SIZE", 1, 65536));
  EGERIA_ASSIGN_OR_RETURN(launch.member.rank, IntegerFrom("RANK", 0, launch.member.world_size - 1));
  if (!Environment("LOCAL_RANK").empty()) {
    EGERIA_ASSIGN_OR_RETURN(launch.local_rank, IntegerFrom("LOCAL_RANK", 0, 65535));
  }
  EGERIA_ASSIGN_OR_RETURN(const c10::intrusive_ptr<c10d::Store> store,
                          OpenStore(launch.member.rank, launch.member.world_size));
  launch.member.store = c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("egeria/", restarts), store);
  if (launch.member.world_size == 1) return launch;
  EGERIA_ASSIGN_OR_RETURN(launch.training_group,
                          worker::MakeDeviceGroup(launch.member, "training", device.type(), kTrainingTimeout));
  EGERIA_ASSIGN_OR_RETURN(launch.commit_group, worker::MakeGlooGroup(launch.member, "commit", kCommitTimeout));
  return launch;
}

absl::StatusOr<std::string> ShareFromRankZero(const worker::GroupMember& member, const std::string& key,
                                              const std::string& value) {
  try {
    if (member.rank == 0) {
      member.store->set(key, std::vector<uint8_t>(value.begin(), value.end()));
      return value;
    }
    const std::vector<uint8_t> bytes = member.store->get(key);
    return std::string(bytes.begin(), bytes.end());
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kUnavailable, "NO_STORE", "rank 0 did not share '", key,
                      "': ", MessageOf(error));
  }
}

absl::StatusOr<c10::Device> ChooseDevice(const std::string& name) {
  const std::optional<c10::DeviceType> accelerator = at::accelerator::getAccelerator();
  const int devices = accelerator.has_value() ? at::accelerator::deviceCount() : 0;
  int local_rank = 0;
  if (!absl::SimpleAtoi(Environment("LOCAL_RANK"), &local_rank)) local_rank = 0;
  const std::string own =
      accelerator.has_value() ? c10::DeviceTypeName(*accelerator, /*lower_case=*/true) : std::string();
  if (name == "cpu" || (name == "auto" && devices == 0)) return c10::Device(c10::kCPU);
  if (devices > 0 && (name == "auto" || name == own)) {
    const c10::Device device(*accelerator, static_cast<c10::DeviceIndex>(local_rank % devices));
    at::accelerator::setDeviceIndex(device.index());
    return device;
  }
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_DEVICE", "there is no device '", name,
                    "' here: use auto or cpu", devices > 0 ? absl::StrCat(" or ", own) : "");
}

}  // namespace egeria::trainer

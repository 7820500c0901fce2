#include "worker/python/native/python_link.h"

#include <unistd.h>

#include <exception>

#include "ATen/DeviceAccelerator.h"
#include "common/base/status.h"
#include "torch/csrc/distributed/c10d/GroupRegistry.hpp"
#include "worker/commit/torch_status.h"

namespace egeria::python {
namespace {

using std::chrono::milliseconds;
using worker::MessageOf;

constexpr milliseconds kExitPatience{
    1000};  // at the end of the process, for the last collective of ranks that have gone
constexpr milliseconds kBusyPatience{2000};  // at the end of the process, for a thread that is in a call

template <typename... Args>
absl::Status BadLink(const Args&... what) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_LINK", what...);
}

// The links of this process. A registry is never destroyed; a forked child gets a registry of its own, as some thread
// of the parent may have held the lock.
struct Registry {
  const pid_t pid = getpid();
  std::mutex mutex;
  std::vector<std::weak_ptr<PythonLink>> links;
};

Registry& ThisProcess() {
  static std::atomic<Registry*> current{new Registry};
  Registry* registry = current.load();
  if (registry->pid != getpid()) {
    registry = new Registry;
    current.store(registry);
  }
  return *registry;
}

absl::StatusOr<c10::Device> ParseDevice(const std::string& text) {
  try {
    return c10::Device(text);
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_DEVICE", "'", text, "': ", MessageOf(error));
  }
}

absl::Status Check(const LinkOptions& options, const worker::ProcessGroupPtr& group) {
  const int world = options.job.world_size;
  if (!options.controller.empty() && !options.plans.empty()) {
    return BadLink("plans are for runs without a controller");
  }
  if (!options.controller.empty() && world > 1 && group == nullptr) {
    return BadLink(world, " ranks need a group over gloo, to agree on plans");
  }
  if (group != nullptr && (group->getSize() != world || group->getRank() != options.job.rank)) {
    return BadLink("the group has rank ", group->getRank(), " of ", group->getSize(), ", the job rank ",
                   options.job.rank, " of ", world);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ClaimGrpc() {
  static std::atomic<pid_t> user{0};
  pid_t nobody = 0;
  if (user.compare_exchange_strong(nobody, getpid()) || nobody == getpid()) return absl::OkStatus();
  return NamedError(absl::StatusCode::kFailedPrecondition, "FORKED", "process ", nobody,
                    ", from which this one was forked, has a link to a controller or a cache "
                    "already: start training processes with torchrun or with the start method 'spawn'");
}

absl::StatusOr<worker::ProcessGroupPtr> FindGroup(const std::string& name) {
  if (name.empty()) return worker::ProcessGroupPtr();
  try {
    return c10d::resolve_process_group(name);
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kInvalidArgument, "NO_GROUP", "'", name, "': ", MessageOf(error));
  }
}

absl::StatusOr<std::shared_ptr<PythonLink>> PythonLink::Start(LinkOptions options) {
  worker::RankLinkParts parts;
  EGERIA_ASSIGN_OR_RETURN(parts.commit_group, FindGroup(options.commit_group));
  EGERIA_RETURN_IF_ERROR(Check(options, parts.commit_group));
  EGERIA_ASSIGN_OR_RETURN(parts.device, ParseDevice(options.device));
  parts.module_count = static_cast<int>(options.job.modules.size());
  std::vector<worker::PlanSchedule::Entry> entries;
  for (const auto& [step, prefix] : options.plans) entries.push_back({step, prefix});
  EGERIA_ASSIGN_OR_RETURN(parts.plans, worker::PlanSchedule::Make(std::move(entries), parts.module_count));
  std::shared_ptr<worker::SessionMetrics> metrics;
  if (!options.metrics.empty()) {
    EGERIA_ASSIGN_OR_RETURN(metrics, worker::SessionMetrics::ServeIfFree(options.metrics, options.job.training_job));
  }
  parts.metrics = metrics.get();
  std::shared_ptr<PythonLink> made(new PythonLink(std::move(metrics)));
  parts.step = options.job.step;
  parts.total_steps = options.job.total_steps;
  parts.frozen_prefix = options.job.frozen_prefix;
  parts.applied_plan = options.job.applied_plan;
  parts.limits.interrupted = [link = made.get(), interrupted = std::move(options.interrupted)] {
    return !link->deaf_ && interrupted && interrupted();
  };
  if (!options.controller.empty()) {
    EGERIA_RETURN_IF_ERROR(ClaimGrpc());
    worker::AgentOptions agent;
    agent.controller = options.controller;
    agent.starts_with_job = options.starts_with_job;
    options.job.device_type = c10::DeviceTypeName(parts.device.type(), /*lower_case=*/true);
    EGERIA_ASSIGN_OR_RETURN(parts.agent, worker::Agent::Start(std::move(agent), std::move(options.job)));
  }
  made->link_ = std::make_unique<worker::RankLink>(std::move(parts));
  Registry& registry = ThisProcess();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  std::erase_if(registry.links, [](const std::weak_ptr<PythonLink>& link) { return link.expired(); });
  registry.links.push_back(made);
  return made;
}

PythonLink::~PythonLink() {
  if (link_ == nullptr) return;
  deaf_ = true;
  Use([](worker::RankLink& link) { link.Stop(/*finished=*/false, kExitPatience).IgnoreError(); });
}

std::unique_lock<std::timed_mutex> PythonLink::Lock() {
  std::timed_mutex* const in_use = in_use_.get();
  return in_use == nullptr ? std::unique_lock<std::timed_mutex>() : std::unique_lock<std::timed_mutex>(*in_use);
}

void PythonLink::StopAll() {
  Registry& registry = ThisProcess();
  std::vector<std::weak_ptr<PythonLink>> links;
  {
    const std::lock_guard<std::mutex> lock(registry.mutex);
    links.swap(registry.links);
  }
  for (const std::weak_ptr<PythonLink>& weak : links) {
    const std::shared_ptr<PythonLink> link = weak.lock();
    if (link == nullptr) continue;
    link->deaf_ = true;
    std::unique_lock<std::timed_mutex> lock(*link->in_use_.get(), kBusyPatience);
    if (!lock.owns_lock()) {
      new std::shared_ptr<PythonLink>(link);  // its thread may still be in it when the process ends
      continue;
    }
    // That other ranks have gone is no news now.
    link->link_->Stop(/*finished=*/false, kExitPatience).IgnoreError();
  }
}

}  // namespace egeria::python

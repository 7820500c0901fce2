#include "worker/python/native/python_link.h"

#include <exception>

#include "ATen/DeviceAccelerator.h"
#include "common/base/status.h"
#include "torch/csrc/distributed/c10d/GroupRegistry.hpp"
#include "worker/commit/torch_status.h"

namespace egeria::python {
namespace {

using std::chrono::milliseconds;
using worker::MessageOf;

// At the end of the process: for the last collective of ranks that have gone, and for a thread that is in a call.
constexpr milliseconds kExitPatience{1000};
constexpr milliseconds kBusyPatience{2000};

template <typename... Args>
absl::Status BadLink(const Args&... what) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_LINK", what...);
}

// The links of this process. Never destroyed; a forked child gets one of its own, as some thread of the parent may
// have held the lock.
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
  std::shared_ptr<PythonLink> made(new PythonLink);
  EGERIA_ASSIGN_OR_RETURN(made->group_, FindGroup(options.commit_group));
  EGERIA_RETURN_IF_ERROR(Check(options, made->group_));
  worker::RankLinkParts parts;
  EGERIA_ASSIGN_OR_RETURN(parts.device, ParseDevice(options.device));
  parts.module_count = static_cast<int>(options.job.modules.size());
  std::vector<worker::PlanSchedule::Entry> entries;
  for (const auto& [step, prefix] : options.plans) entries.push_back({step, prefix});
  EGERIA_ASSIGN_OR_RETURN(parts.plans, worker::PlanSchedule::Make(std::move(entries), parts.module_count));
  if (!options.metrics.empty()) {
    EGERIA_ASSIGN_OR_RETURN(made->metrics_, worker::SessionMetrics::Serve(options.metrics, options.job.training_job));
  }
  parts.commit_group = made->group_;
  parts.metrics = made->metrics_.get();
  parts.step = options.job.step;
  parts.frozen_prefix = options.job.frozen_prefix;
  parts.applied_plan = options.job.applied_plan;
  parts.limits.interrupted = [link = made.get(), interrupted = std::move(options.interrupted)] {
    return !link->deaf_ && interrupted && interrupted();
  };
  if (!options.controller.empty()) {
    EGERIA_RETURN_IF_ERROR(ClaimGrpc());
    worker::AgentOptions agent;
    agent.controller = options.controller;
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
  if (InChild()) {
    (void)link_.release();
    (void)metrics_.release();
    (void)group_.release();
    return;
  }
  if (link_ == nullptr) return;  // it never started
  deaf_ = true;
  Stop(/*finished=*/false, kExitPatience).IgnoreError();
}

bool PythonLink::InChild() const { return getpid() != pid_; }

std::optional<PythonLink::Asked<worker::SamplingRequest>> PythonLink::SamplingFor(int64_t step) {
  if (InChild()) return std::nullopt;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  const auto request = link_->SamplingFor(step);
  if (!request.has_value()) return std::nullopt;
  return Asked<worker::SamplingRequest>{*request, link_->IsAsked(*request)};
}

std::optional<PythonLink::Asked<worker::SnapshotRequest>> PythonLink::SnapshotWanted(int64_t step) {
  if (InChild()) return std::nullopt;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  const auto request = link_->SnapshotWanted(step);
  if (!request.has_value()) return std::nullopt;
  return Asked<worker::SnapshotRequest>{*request, link_->IsAsked(*request)};
}

std::optional<PythonLink::Asked<worker::GradientRequest>> PythonLink::GradientsFor(int64_t step) {
  if (InChild()) return std::nullopt;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  const auto request = link_->GradientsFor(step);
  if (!request.has_value()) return std::nullopt;
  return Asked<worker::GradientRequest>{*request, link_->IsAsked(*request)};
}

bool PythonLink::OfferGradients(const worker::GradientRequest& request, int64_t step, worker::GradientSquares own) {
  if (InChild()) return false;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  return link_->OfferGradients(request, step, std::move(own));
}

bool PythonLink::OfferSample(const worker::SamplingRequest& request, int64_t step,
                             std::vector<worker::NamedTensor> inputs, const at::Tensor& compared) {
  if (InChild()) return false;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  return link_->OfferSample(request, step, std::move(inputs), compared);
}

bool PythonLink::OfferReading(const worker::SamplingRequest& request, int64_t step, double plasticity) {
  if (InChild()) return false;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  return link_->OfferReading(request, step, plasticity);
}

bool PythonLink::OfferSnapshot(const worker::SnapshotRequest& request, int64_t module, int64_t step,
                               std::vector<worker::NamedTensor> tensors) {
  if (InChild()) return false;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  return link_->OfferSnapshot(request, ModuleIndex(module), step, std::move(tensors));
}

absl::StatusOr<std::optional<worker::Plan>> PythonLink::Commit(int64_t step) {
  if (InChild()) return std::nullopt;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  link_->Poll();
  return link_->Commit(step);
}

void PythonLink::Report(int64_t step, const at::Tensor& loss, const std::vector<double>& learning_rates,
                        int frozen_prefix, int zero_lr_prefix) {
  if (InChild()) return;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  link_->Report(step, loss, learning_rates, frozen_prefix, zero_lr_prefix);
}

void PythonLink::RecordSwitch(bool unfreeze, bool identical) {
  if (InChild()) return;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  link_->RecordSwitch(unfreeze, identical);
}

void PythonLink::RecordDroppedSample() {
  if (InChild()) return;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  link_->RecordDroppedSample();
}

void PythonLink::SetModelTotals(double frozen_share, int64_t bytes_reduced) {
  if (InChild()) return;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  link_->SetModelTotals(frozen_share, bytes_reduced);
}

void PythonLink::SetAccount(worker::AccountTotals totals) {
  if (InChild()) return;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  link_->SetAccount(std::move(totals));
}

void PythonLink::SetCacheTotals(worker::CacheTotals totals) {
  if (InChild()) return;
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  link_->SetCacheTotals(std::move(totals));
}

PythonLink::Counters PythonLink::counters() {
  if (InChild()) return {};
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  return {link_->totals(), link_->counters(), link_->applied_plan().value(),
          metrics_ == nullptr ? 0 : metrics_->port()};
}

absl::Status PythonLink::Stop(bool finished, milliseconds patience) {
  if (InChild()) return absl::OkStatus();
  const std::lock_guard<std::timed_mutex> lock(in_use_);
  return link_->Stop(finished, patience);
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
    std::unique_lock<std::timed_mutex> lock(link->in_use_, kBusyPatience);
    if (!lock.owns_lock()) {
      new std::shared_ptr<PythonLink>(link);  // its thread may still be in it when the process ends
      continue;
    }
    // That other ranks have gone is no news now.
    link->link_->Stop(/*finished=*/false, kExitPatience).IgnoreError();
  }
}

}  // namespace egeria::python

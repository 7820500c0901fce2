#include "worker/session/session.h"

#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "ATen/DeviceAccelerator.h"
#include "ATen/core/grad_mode.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/commit/parameter_checksum.h"
#include "worker/commit/torch_status.h"
#include "worker/session/probe.h"

namespace egeria::worker {
namespace {

// Between two attempts to answer one snapshot request: the agent had no room, or its stream was lost.
constexpr int64_t kSnapshotRetrySteps = 16;

int64_t TotalBytes(const std::vector<NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.tensor.nbytes());
  return bytes;
}

}  // namespace

Session::Session(SessionParts parts)
    : parts_(std::move(parts)), committer_(parts_.commit_group, parts_.applied_plan), copier_(parts_.device) {
  step_ = parts_.step;
}

Session::~Session() {
  if (const absl::Status status = Stop(/*finished=*/false); !status.ok()) LogWarning(status.message());
}

absl::StatusOr<std::unique_ptr<Session>> Session::Start(SessionParts parts) {
  std::unique_ptr<Session> session(new Session(std::move(parts)));
  EGERIA_RETURN_IF_ERROR(session->parts_.freezer->Apply(session->parts_.frozen_prefix).status());
  EGERIA_RETURN_IF_ERROR(session->RebuildReducer());
  return session;
}

absl::Status Session::RebuildReducer() {
  return parts_.reducer->Rebuild(parts_.freezer->active_parameters(), parts_.freezer->active_buffers());
}

void Session::BeginStep() {
  parts_.reducer->BeforeForward();
  sampling_.reset();
  captured_.reset();
  if (parts_.agent == nullptr) return;
  const std::optional<SamplingRequest> wanted = parts_.agent->sampling();
  if (!wanted.has_value() || wanted->interval_steps < 1 || (step_ + 1) % wanted->interval_steps != 0) return;
  // A request for a module that has been frozen since tells nothing, nor does one for a module unknown here.
  const int64_t module = wanted->module.value(), first = wanted->first_module.value();
  if (first < 0 || first > module || module < parts_.freezer->frozen_prefix() ||
      module >= static_cast<int64_t>(parts_.freezer->modules().size()) || wanted->batch_size < 2) {
    return;
  }
  sampling_ = wanted;
}

at::Tensor Session::Forward(at::Tensor input) {
  const std::vector<LayerModule>& modules = parts_.freezer->modules();
  const bool gradients = at::GradMode::is_enabled();
  for (size_t i = 0; i < modules.size(); ++i) {
    if (sampling_.has_value() && sampling_->first_module.value() == static_cast<int64_t>(i)) Capture(input);
    at::AutoGradMode mode(gradients && static_cast<int>(i) >= parts_.freezer->frozen_prefix());
    input = modules[i].Run(std::move(input));
  }
  return input;
}

void Session::Capture(const at::Tensor& input) {
  if (input.size(0) < sampling_->batch_size) {
    if (!std::exchange(small_batch_told_, true)) {
      LogWarning("a batch of ", input.size(0), " samples gives no reading: ", sampling_->batch_size,
                 " are asked for");
    }
    return;
  }
  // A copy: what follows may change its input in place, and the whole batch need not stay alive.
  captured_ = input.detach().narrow(0, 0, sampling_->batch_size).clone();
}

absl::Status Session::EndStep(const at::Tensor& loss, const std::vector<double>& learning_rates) {
  ++step_;
  if (parts_.agent != nullptr) {
    copier_.Poll();
    Probe();
    AnswerSnapshotRequest();
  }
  EGERIA_RETURN_IF_ERROR(CommitAndSwitch());
  if (parts_.agent != nullptr) Report(loss, learning_rates);
  if (parts_.metrics != nullptr) parts_.metrics->Update(totals());
  return absl::OkStatus();
}

void Session::Probe() {
  if (!sampling_.has_value() || !captured_.defined()) return;
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor input = std::exchange(captured_, at::Tensor());
  try {
    const at::Tensor gram =
        ProbeGram(parts_.freezer->modules(), sampling_->first_module.value(), sampling_->module.value(), input);
    Sample header;
    header.module = sampling_->module;
    header.first_module = sampling_->first_module;
    header.step = step_;
    header.request_version = sampling_->version;
    Agent* const agent = parts_.agent.get();
    if (!copier_.Copy({{"input", input}, {"gram", gram}}, [agent, header](std::vector<WireTensor> tensors) {
          Sample sample = header;
          sample.tensors = std::move(tensors);
          agent->OfferSample(std::move(sample));
        })) {
      ++counted_.samples_dropped;
    }
  } catch (const std::exception& error) {
    ++counted_.samples_dropped;
    if (!std::exchange(probe_failed_, true)) {
      LogWarning("layer module ", sampling_->module.value(),
                 " cannot be probed, so it will not freeze: ", MessageOf(error));
    }
  }
  counted_.probe_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Session::AnswerSnapshotRequest() {
  const std::optional<SnapshotRequest> wanted = parts_.agent->snapshot();
  if (!wanted.has_value() || snapshots_in_flight_ > 0) return;
  if (wanted->version == snapshot_version_ && step_ < snapshot_step_ + kSnapshotRetrySteps) return;
  const int64_t first = wanted->first_module.value(), last = wanted->module.value();
  if (first < 0 || first > last || last >= static_cast<int64_t>(parts_.snapshot_tensors.size())) return;
  snapshot_version_ = wanted->version;
  snapshot_step_ = step_;
  for (int64_t module = first; module <= last; ++module) {
    std::vector<NamedTensor> tensors = parts_.snapshot_tensors[module];
    // The next step changes the weights while the copy to the host may still be under way.
    if (at::accelerator::isAccelerator(parts_.device.type())) {
      for (NamedTensor& tensor : tensors) tensor.tensor = tensor.tensor.detach().clone();
    }
    Snapshot header;
    header.module = ModuleIndex(module);
    header.step = step_;
    header.version = wanted->version;
    const int64_t bytes = TotalBytes(tensors);
    ++snapshots_in_flight_;
    const bool copying = copier_.Copy(std::move(tensors), [this, header, bytes](std::vector<WireTensor> wire) {
      --snapshots_in_flight_;
      Snapshot snapshot = header;
      snapshot.tensors = std::move(wire);
      if (parts_.agent->OfferSnapshot(std::move(snapshot))) counted_.snapshot_bytes += bytes;
    });
    if (!copying) --snapshots_in_flight_;
  }
}

absl::Status Session::CommitAndSwitch() {
  if (parts_.agent == nullptr) {
    const std::optional<int> prefix = parts_.plans.At(step_);
    return prefix.has_value() ? SwitchTo(*prefix, PlanId()) : absl::OkStatus();
  }
  EGERIA_ASSIGN_OR_RETURN(const std::optional<PlanId> id, committer_.Tick(parts_.agent->watermark()));
  if (!id.has_value()) return absl::OkStatus();
  const std::optional<Plan> plan = parts_.agent->plan(*id);
  if (!plan.has_value()) {
    return NamedError(absl::StatusCode::kInternal, "PLAN_LOST", "plan ", id->value(),
                      " is committed, but this rank does not have it");
  }
  ++counted_.commits;
  return SwitchTo(plan->frozen_prefix, *id);
}

absl::Status Session::SwitchTo(int prefix, PlanId plan) {
  if (prefix == parts_.freezer->frozen_prefix()) return absl::OkStatus();
  try {
    parts_.reducer->SyncBuffers();  // what freezes now is to be the same everywhere
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kUnavailable, "REDUCER_FAILED", MessageOf(error));
  }
  EGERIA_ASSIGN_OR_RETURN(const ModuleFreezer::Change change, parts_.freezer->Apply(prefix));
  EGERIA_RETURN_IF_ERROR(RebuildReducer());
  EGERIA_ASSIGN_OR_RETURN(const bool identical, RanksIdentical());
  ++(change.unfreezes() ? counted_.unfreezes : counted_.freezes);
  if (!identical) {
    ++counted_.checksum_mismatches;
    LogError("step ", step_, ": the ranks' parameters differ after a switch to frozen prefix ", prefix);
  }
  switches_.push_back({step_, change.unfreezes(), prefix, identical, plan});
  return absl::OkStatus();
}

void Session::Report(const at::Tensor& loss, const std::vector<double>& learning_rates) {
  StepReport report;
  report.step = step_;
  report.learning_rates = learning_rates;
  report.frozen_prefix = parts_.freezer->frozen_prefix();
  report.applied_plan = committer_.applied();
  Agent* const agent = parts_.agent.get();
  // The loss may not have been computed yet; the report waits for it, the training thread does not.
  const bool copying =
      copier_.Copy({{"loss", loss.detach().to(at::kFloat)}}, [agent, report](std::vector<WireTensor> tensors) {
        StepReport with_loss = report;
        std::memcpy(&with_loss.loss.emplace(), tensors[0].data(), sizeof(float));
        agent->ReportStep(with_loss);
      });
  if (!copying) agent->ReportStep(report);
}

uint64_t Session::Hash() const {
  std::vector<at::Tensor> tensors;
  const std::vector<LayerModule>& modules = parts_.freezer->modules();
  for (size_t i = 0; i < modules.size(); ++i) {
    for (const NamedTensor& parameter : modules[i].parameters()) tensors.push_back(parameter.tensor);
    if (static_cast<int>(i) >= parts_.freezer->frozen_prefix()) continue;
    for (const NamedTensor& buffer : modules[i].buffers()) tensors.push_back(buffer.tensor);
  }
  return HashTensors(tensors);
}

absl::StatusOr<bool> Session::RanksIdentical() const {
  return IdenticalOnAllRanks(Hash(), parts_.commit_group);
}

SessionTotals Session::totals() const {
  SessionTotals totals = counted_;
  totals.steps = step_;
  totals.frozen_prefix = parts_.freezer->frozen_prefix();
  totals.frozen_share = parts_.freezer->frozen_share();
  totals.bytes_reduced = parts_.reducer->bytes_reduced();
  if (parts_.agent != nullptr) {
    const AgentCounters counters = parts_.agent->counters();
    totals.samples_sent = counters.samples_sent;
    totals.samples_dropped += counters.samples_dropped;
    totals.snapshots_sent = counters.snapshots_sent;
    totals.reconnects = counters.reconnects;
    totals.connected = counters.connected;
  }
  return totals;
}

absl::Status Session::Stop(bool finished) {
  const absl::Status status = committer_.Stop();
  if (parts_.agent != nullptr) {
    copier_.Drain();
    parts_.agent->Stop(finished);
  }
  return status;
}

}  // namespace egeria::worker

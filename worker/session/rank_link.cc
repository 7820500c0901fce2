#include "worker/session/rank_link.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "ATen/DeviceAccelerator.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/commit/committer.h"
#include "worker/session/host_copier.h"
#include "worker/session/request_agreement.h"

namespace egeria::worker {
namespace {

// Between two attempts to answer one snapshot request: the agent had no room, or its stream was lost.
constexpr int64_t kSnapshotRetrySteps = 16;

// The ranks advertise what they have at every boundary while there is something to agree on or gradients are measured,
// else at every so many: it wakes threads beside a training that keeps all cores busy.
constexpr int64_t kIdleBoundaries = 8;

int64_t TotalBytes(const std::vector<NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.tensor.nbytes());
  return bytes;
}

template <typename Request>
bool IsVersion(int64_t version, const std::optional<Request>& request) {
  return request.has_value() && request->version == version;
}

// What the controller is told of an account: nothing before a step without frozen layers has been measured.
std::optional<AccountReport> ReportOf(const AccountTotals& account, int frozen_prefix) {
  const auto active = account.seconds_per_step.find(0);
  if (!account.saved_seconds.has_value() || active == account.seconds_per_step.end()) return std::nullopt;
  const auto frozen = account.seconds_per_step.find(frozen_prefix);
  const bool measured = frozen_prefix > 0 && frozen != account.seconds_per_step.end();
  return AccountReport{.saved_seconds = *account.saved_seconds,
                       .spent_seconds = account.total_spent_seconds(),
                       .measuring_seconds = account.measuring_seconds(),
                       .active_step_seconds = active->second,
                       .frozen_step_seconds = measured ? frozen->second : 0,
                       .frozen_prefix = measured ? frozen_prefix : 0};
}

}  // namespace

struct RankLink::State {
  explicit State(RankLinkParts given)
      : parts(std::move(given)),
        committer(parts.commit_group, parts.applied_plan, parts.limits),
        gradients(parts.commit_group, parts.module_count),
        step(parts.step),
        frozen_prefix(parts.frozen_prefix),
        copier(parts.device) {}

  // What rides along with the commit: the step, which must be the same everywhere, the newest plan, and the requests.
  void Hear(const std::vector<int64_t>& minima) {
    const int64_t oldest_plan = minima[0], newest_plan = -minima[3];
    if (minima[1] != -minima[2]) steps_differ = true;
    step_agreed = minima[1];
    agreement.Hear({minima.begin() + 4, minima.end()});
    idle = agreement.settled() && oldest_plan == newest_plan;
  }
  // Whether to advertise at this boundary follows from their number and from what has been heard, never from what is
  // this rank's own: ranks that are at other steps, or have applied other plans, must still do it at the same
  // boundaries, or they would take one collective for another.
  std::optional<std::vector<int64_t>> Advertise() {
    const bool due = boundaries++ % kIdleBoundaries == 0;
    if (idle && !due && !agreement.gradients().has_value()) return std::nullopt;
    std::vector<int64_t> numbers = {step, -step, -parts.agent->watermark().value()};
    const std::vector<int64_t> requests =
        agreement.Advertise(parts.agent->sampling(), parts.agent->snapshot(), parts.agent->gradients());
    numbers.insert(numbers.end(), requests.begin(), requests.end());
    return numbers;
  }

  // Alone, this rank need not hear itself.
  bool alone() const { return parts.commit_group == nullptr; }
  std::optional<SamplingRequest> sampling() const {
    if (parts.agent == nullptr) return std::nullopt;
    return alone() ? parts.agent->sampling() : agreement.sampling();
  }
  std::optional<SnapshotRequest> snapshot() const {
    if (parts.agent == nullptr) return std::nullopt;
    return alone() ? parts.agent->snapshot() : agreement.snapshot();
  }

  std::optional<GradientRequest> gradient_request() const {
    if (parts.agent == nullptr) return std::nullopt;
    return alone() ? parts.agent->gradients() : agreement.gradients();
  }
  void Send(std::optional<GradientReading> reading) {
    if (!reading.has_value() || !IsVersion(reading->request_version, parts.agent->gradients())) return;
    parts.agent->OfferGradients(*std::move(reading));
  }

  RankLinkParts parts;
  Committer committer;
  GradientExchange gradients;
  // Asked for at the step that ended at the last boundary. Whether all ranks were at that step is known at the next
  // one only, and only then may the exchange begin: ranks that are not would take one collective for another.
  std::optional<GradientRequest> gradients_due;
  int64_t step_agreed = -1;  // where all ranks were at the same, when they last told each other
  RequestAgreement agreement;
  int64_t boundaries = 0;  // so far
  // Nothing is under way that all ranks do not have yet. Like all that is heard, the same on all of them.
  bool idle = false;
  SessionTotals counted;
  int64_t step;
  int frozen_prefix;
  PlanId applied = parts.applied_plan;
  bool steps_differ = false;  // once so, for ever
  // The last attempt to answer a snapshot request: the same on all ranks, but for what is still on its way
  // from the device.
  int64_t snapshot_version = -1;
  int64_t snapshot_step = 0;
  int snapshots_in_flight = 0;
  bool snapshot_open = false;  // the present attempt may send
  HostCopier copier;           // last: it hands on to the above
};

RankLink::RankLink(RankLinkParts parts) : pid_(getpid()), state_(std::make_unique<State>(std::move(parts))) {}

RankLink::~RankLink() {
  if (InChild()) {
    (void)state_.release();
    return;
  }
  if (const absl::Status status = Stop(/*finished=*/false); !status.ok()) LogWarning(status.message());
}

bool RankLink::InChild() const { return getpid() != pid_; }

bool RankLink::has_controller() const { return !InChild() && state_->parts.agent != nullptr; }

std::optional<SamplingRequest> RankLink::SamplingFor(int64_t step) const {
  if (InChild()) return std::nullopt;
  const std::optional<SamplingRequest> wanted = state_->sampling();
  if (!wanted.has_value() || wanted->interval_steps < 1 || step % wanted->interval_steps != 0) return std::nullopt;
  // A request for a module that has been frozen since tells nothing, nor does one for a module unknown here.
  const int64_t module = wanted->module.value(), first = wanted->first_module.value();
  if (first < 0 || first > module || module < state_->frozen_prefix || module >= state_->parts.module_count ||
      wanted->batch_size < 2) {
    return std::nullopt;
  }
  return wanted;
}

std::optional<SnapshotRequest> RankLink::SnapshotWanted(int64_t step) {
  if (InChild()) return std::nullopt;
  State& state = *state_;
  const std::optional<SnapshotRequest> wanted = state.snapshot();
  if (!wanted.has_value()) return std::nullopt;
  if (wanted->version == state.snapshot_version && step < state.snapshot_step + kSnapshotRetrySteps) {
    return std::nullopt;
  }
  const int64_t first = wanted->first_module.value(), last = wanted->module.value();
  if (first < 0 || first > last || last >= state.parts.module_count) return std::nullopt;
  state.snapshot_version = wanted->version;
  state.snapshot_step = step;
  state.snapshot_open = state.snapshots_in_flight == 0;
  return wanted;
}

bool RankLink::IsAsked(const SamplingRequest& request) const {
  return has_controller() && IsVersion(request.version, state_->parts.agent->sampling());
}

bool RankLink::IsAsked(const SnapshotRequest& request) const {
  return has_controller() && IsVersion(request.version, state_->parts.agent->snapshot());
}

bool RankLink::IsAsked(const GradientRequest& request) const {
  return has_controller() && IsVersion(request.version, state_->parts.agent->gradients());
}

std::optional<GradientRequest> RankLink::GradientsFor(int64_t step) const {
  if (InChild()) return std::nullopt;
  const std::optional<GradientRequest> wanted = state_->gradient_request();
  if (!wanted.has_value() || wanted->interval_steps < 1 || step % wanted->interval_steps != 0) return std::nullopt;
  const int64_t first = wanted->first_module.value();
  if (first < 0 || first >= state_->parts.module_count) return std::nullopt;
  return wanted;
}

bool RankLink::OfferGradients(const GradientRequest& request, int64_t step, GradientSquares own) {
  if (!has_controller()) return false;
  State& state = *state_;
  const size_t modules = static_cast<size_t>(state.parts.module_count - request.first_module.value());
  if (own.mean_of_squares.size() != modules || own.square_of_mean.size() != modules) return false;
  if (!own.progress.empty() && own.progress.size() != modules) return false;
  if (state.alone()) {
    state.Send(GradientExchange::Alone(request, step, std::move(own)));
  } else {
    state.gradients.Offer(request, step, std::move(own));
  }
  return true;
}

bool RankLink::OfferSample(const SamplingRequest& request, int64_t step, std::vector<NamedTensor> inputs,
                           const at::Tensor& compared) {
  if (!IsAsked(request)) return false;
  Sample header;
  header.module = request.module;
  header.first_module = request.first_module;
  header.step = step;
  header.request_version = request.version;
  inputs.push_back({request.metric == ActivationMetric::kSpLoss ? "gram" : "output", compared});
  Agent* const agent = state_->parts.agent.get();
  const bool copying = state_->copier.Copy(std::move(inputs), [agent, header](std::vector<WireTensor> tensors) {
    Sample sample = header;
    sample.tensors = std::move(tensors);
    agent->OfferSample(std::move(sample));
  });
  if (!copying) ++state_->counted.samples_dropped;
  return copying;
}

bool RankLink::OfferReading(const SamplingRequest& request, int64_t step, double plasticity) {
  if (!IsAsked(request)) return false;
  Reading reading;
  reading.module = request.module;
  reading.step = step;
  reading.request_version = request.version;
  reading.plasticity = plasticity;
  return state_->parts.agent->OfferReading(reading);
}

bool RankLink::OfferSnapshot(const SnapshotRequest& request, ModuleIndex module, int64_t step,
                             std::vector<NamedTensor> tensors) {
  if (!IsAsked(request) || !state_->snapshot_open) return false;
  // The next step changes the weights while the copy to the host may still be under way.
  if (at::accelerator::isAccelerator(state_->parts.device.type())) {
    for (NamedTensor& tensor : tensors) tensor.tensor = tensor.tensor.detach().clone();
  }
  Snapshot header;
  header.module = module;
  header.step = step;
  header.version = request.version;
  const int64_t bytes = TotalBytes(tensors);
  State* const state = state_.get();
  ++state->snapshots_in_flight;
  const bool copying = state->copier.Copy(std::move(tensors), [state, header, bytes](std::vector<WireTensor> wire) {
    --state->snapshots_in_flight;
    Snapshot snapshot = header;
    snapshot.tensors = std::move(wire);
    if (state->parts.agent->OfferSnapshot(std::move(snapshot))) state->counted.snapshot_bytes += bytes;
  });
  if (!copying) --state->snapshots_in_flight;
  return copying;
}

void RankLink::Poll() {
  if (!InChild()) state_->copier.Poll();
}

absl::StatusOr<std::optional<Plan>> RankLink::Commit(int64_t step) {
  if (InChild()) return std::nullopt;
  State& state = *state_;
  state.step = step;
  const Agent* const agent = state.parts.agent.get();
  if (agent == nullptr) {
    const std::optional<int> prefix = state.parts.plans.At(step);
    if (!prefix.has_value()) return std::nullopt;
    state.frozen_prefix = *prefix;
    return Plan{.frozen_prefix = *prefix, .reason = "plan schedule"};
  }
  EGERIA_ASSIGN_OR_RETURN(std::optional<GradientReading> reading, state.gradients.Finish(state.parts.limits));
  state.Send(std::move(reading));
  const std::optional<GradientRequest> due = GradientsFor(step);
  bool advertised = false;
  const auto riders = [&](const std::vector<int64_t>& minima) {
    if (!minima.empty()) state.Hear(minima);
    std::optional<std::vector<int64_t>> numbers = state.Advertise();
    advertised = numbers.has_value();
    return numbers;
  };
  EGERIA_ASSIGN_OR_RETURN(const std::optional<PlanId> id, state.committer.Tick(agent->watermark(), riders));
  if (!state.alone() && !state.steps_differ) {
    if (state.gradients_due.has_value()) {
      EGERIA_RETURN_IF_ERROR(state.gradients.Begin(*state.gradients_due, state.step_agreed));
    }
    state.gradients_due = advertised ? due : std::nullopt;  // not so: the request has just been withdrawn
  }
  if (state.steps_differ) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "STEPS_DIFFER",
                      "the ranks are not at the same step, this one at ", step,
                      ": every rank must take each optimizer step; no plan can be applied any more");
  }
  if (!id.has_value()) return std::nullopt;
  std::optional<Plan> plan = agent->plan(*id);
  if (!plan.has_value()) {
    return NamedError(absl::StatusCode::kInternal, "PLAN_LOST", "plan ", id->value(),
                      " is committed, but this rank does not have it");
  }
  ++state.counted.commits;
  state.applied = *id;
  state.frozen_prefix = plan->frozen_prefix;
  return plan;
}

PlanId RankLink::applied_plan() const { return InChild() ? PlanId() : state_->applied; }

void RankLink::Report(int64_t step, const at::Tensor& loss, const std::vector<double>& learning_rates,
                      int frozen_prefix, int zero_lr_prefix) {
  if (InChild()) return;
  State& state = *state_;
  state.step = step;
  state.frozen_prefix = frozen_prefix;
  if (Agent* const agent = state.parts.agent.get(); agent != nullptr) {
    StepReport report;
    report.step = step;
    report.learning_rates = learning_rates;
    report.zero_lr_prefix = zero_lr_prefix;
    report.frozen_prefix = frozen_prefix;
    report.applied_plan = state.applied;
    report.account = ReportOf(state.counted.account, frozen_prefix);
    // The loss may not have been computed yet; the report waits for it, the training thread does not.
    const bool copying =
        loss.defined() && loss.numel() == 1 &&
        state.copier.Copy({{"loss", loss.detach().to(at::kFloat)}}, [agent, report](std::vector<WireTensor> tensors) {
          StepReport with_loss = report;
          std::memcpy(&with_loss.loss.emplace(), tensors[0].data(), sizeof(float));
          agent->ReportStep(with_loss);
        });
    if (!copying) agent->ReportStep(report);
  }
  if (state.parts.metrics != nullptr) state.parts.metrics->Update(totals());
}

void RankLink::RecordSwitch(bool unfreeze, bool identical) {
  if (InChild()) return;
  ++(unfreeze ? state_->counted.unfreezes : state_->counted.freezes);
  if (!identical) ++state_->counted.checksum_mismatches;
}

void RankLink::RecordDroppedSample() {
  if (!InChild()) ++state_->counted.samples_dropped;
}

void RankLink::SetModelTotals(double frozen_share, int64_t bytes_reduced) {
  if (InChild()) return;
  state_->counted.frozen_share = frozen_share;
  state_->counted.bytes_reduced = bytes_reduced;
}

void RankLink::SetAccount(AccountTotals totals) {
  if (!InChild()) state_->counted.account = std::move(totals);
}

void RankLink::SetCacheTotals(CacheTotals totals) {
  if (!InChild()) state_->counted.cache = std::move(totals);
}

AgentCounters RankLink::counters() const {
  return has_controller() ? state_->parts.agent->counters() : AgentCounters();
}

SessionTotals RankLink::totals() const {
  if (InChild()) return {};
  SessionTotals totals = state_->counted;
  totals.steps = state_->step;
  totals.frozen_prefix = state_->frozen_prefix;
  const AgentCounters counters = this->counters();
  totals.samples_sent = counters.samples_sent;
  totals.samples_dropped += counters.samples_dropped;
  totals.snapshots_sent = counters.snapshots_sent;
  totals.reconnects = counters.reconnects;
  totals.connected = counters.connected;
  return totals;
}

absl::Status RankLink::Stop(bool finished, std::chrono::milliseconds patience) {
  if (InChild()) return absl::OkStatus();
  absl::Status status = state_->committer.Stop(patience);
  // What did not end in time will not end at all.
  const std::chrono::milliseconds left = status.ok() ? patience : std::chrono::milliseconds(1);
  status.Update(state_->gradients.Stop({state_->parts.limits.interrupted, left}));
  if (state_->parts.agent != nullptr) {
    state_->copier.Drain();
    state_->parts.agent->Stop(finished);
  }
  return status;
}

}  // namespace egeria::worker

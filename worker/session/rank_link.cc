#include "worker/session/rank_link.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "ATen/DeviceAccelerator.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/commit/committer.h"
#include "worker/session/gradient_exchange.h"
#include "worker/session/host_copier.h"
#include "worker/session/request_agreement.h"
#include "worker/session/wire.h"

namespace egeria::worker {
namespace {

// So many steps pass between two attempts to answer one snapshot request: the agent had no room, or its stream was
// lost.
constexpr int64_t kSnapshotRetrySteps = 16;

// The ranks advertise what they have at every boundary while there is something to agree on or gradients are measured,
// else at every so many: it wakes threads beside a training that keeps all cores busy.
constexpr int64_t kIdleBoundaries = 8;

int64_t TotalBytes(const std::vector<NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.tensor.nbytes());
  return bytes;
}

// The requests of each kind that the controller has for this rank now.
std::optional<SamplingRequest> Wanted(const Agent& agent, const SamplingRequest*) { return agent.sampling(); }
std::optional<SnapshotRequest> Wanted(const Agent& agent, const SnapshotRequest*) { return agent.snapshot(); }
std::optional<GradientRequest> Wanted(const Agent& agent, const GradientRequest*) { return agent.gradients(); }

}  // namespace

struct RankLink::State {
  explicit State(RankLinkParts given)
      : parts(std::move(given)),
        committer(parts.commit_group, parts.applied_plan, parts.limits),
        gradients(parts.commit_group, parts.module_count),
        step(parts.step),
        frozen_prefix(parts.frozen_prefix),
        copier(parts.device) {}

  // Takes in what the ranks have told each other with the commit: the step, which must be the same everywhere, and the
  // requests.
  void Hear(const std::vector<int64_t>& minima) {
    if (minima[0] != -minima[1]) steps_differ = true;
    step_agreed = minima[0];
    agreement.Hear({minima.begin() + 2, minima.end()});
    idle = agreement.settled() && committer.settled();
  }
  // Returns what this rank advertises at this boundary, if it does. Whether it does follows from the number of
  // boundaries and from what has been heard, never from what is this rank's own. Ranks that are at other steps, or have
  // applied other plans, must still do it at the same boundaries. Otherwise they would take one collective for another.
  std::optional<std::vector<int64_t>> Advertise() {
    const bool due = boundaries++ % kIdleBoundaries == 0;
    if (idle && !due && !agreement.gradients().has_value()) return std::nullopt;
    std::vector<int64_t> numbers = {step, -step};
    const std::vector<int64_t> requests =
        agreement.Advertise(parts.agent->sampling(), parts.agent->snapshot(), parts.agent->gradients());
    numbers.insert(numbers.end(), requests.begin(), requests.end());
    return numbers;
  }

  // Returns the plans that this rank holds at this boundary.
  HeldPlans held() const {
    const auto content = [agent = parts.agent.get()](PlanId id) {
      const std::optional<Plan> plan = agent->plan(id);
      return plan.has_value() ? PlanContent{plan->generation.value(), plan->frozen_prefix} : PlanContent();
    };
    return {parts.agent->watermark(), content};
  }

  // Says which ranks have which content of a plan that was dropped.
  void TellDispute(const Committer::Dispute& dispute) {
    ++counted.plans_disputed;
    std::vector<std::string> contents;
    for (size_t rank = 0; rank < dispute.by_rank.size(); ++rank) {
      const PlanContent& content = dispute.by_rank[rank];
      contents.push_back(content.is_void() ? absl::StrCat("rank ", rank, " lacks it")
                                           : absl::StrCat("rank ", rank, " has ", content.frozen_prefix,
                                                          " frozen modules in generation ", content.generation));
    }
    LogError("[PLAN_DISPUTED] plan ", dispute.plan.value(),
             " does not say the same on all ranks, and was dropped: ", absl::StrJoin(contents, ", "),
             ". The controller has lost its journal, or the ranks have different controllers.");
  }

  // Says once that the loss has become NaN or infinite; again after it has been a number. Rank 0 speaks for all.
  void TellIfNotFinite(int64_t reported_step, float loss) {
    const bool speaks = alone() || parts.commit_group->getRank() == 0;
    if (std::isfinite(loss) || !speaks) {
      told_not_finite = false;
    } else if (!std::exchange(told_not_finite, true)) {
      LogWarning("[LOSS_NOT_FINITE] the loss of step ", reported_step, " is ", loss,
                 ": nothing freezes while it is; look at the learning rate and the data, or resume from a checkpoint");
    }
  }

  // The world is of one rank, which need not hear itself.
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

  template <typename Request>
  bool IsAsked(int64_t version) const {
    if (parts.agent == nullptr) return false;
    const std::optional<Request> wanted = Wanted(*parts.agent, static_cast<const Request*>(nullptr));
    return wanted.has_value() && wanted->version == version;
  }

  // Copies the tensors to the host, and gives the upload with them to the agent when they have arrived. `then` is told
  // whether the agent has queued it.
  template <typename Kind, typename Then>
  bool CopyAndSend(Kind upload, std::vector<NamedTensor> tensors, Then then) {
    Agent* const agent = parts.agent.get();
    return copier.Copy(std::move(tensors), [agent, upload = std::move(upload), then](std::vector<WireTensor> wire) {
      Kind complete = upload;
      complete.tensors = std::move(wire);
      then(agent->Offer(std::move(complete)));
    });
  }

  // Sends an upload that is like most of its kind: from the rank that is asked, with tensors if it has a place for
  // them.
  template <typename Kind>
  bool Send(Kind upload, std::vector<NamedTensor> tensors) {
    if (!IsAsked<typename Kind::Request>(upload.request_version)) return false;
    if constexpr (requires { upload.tensors; }) {
      const bool copying = CopyAndSend(std::move(upload), std::move(tensors), [](bool) {});
      if (!copying) ++counted.samples_dropped;
      return copying;
    } else {
      return parts.agent->Offer(std::move(upload));
    }
  }

  bool Send(Snapshot snapshot, std::vector<NamedTensor> tensors) {
    if (!IsAsked<SnapshotRequest>(snapshot.version) || !snapshot_open) return false;
    // The next step changes the weights while the copy to the host may still be under way.
    if (at::accelerator::isAccelerator(parts.device.type())) {
      for (NamedTensor& tensor : tensors) tensor.tensor = tensor.tensor.detach().clone();
    }
    const int64_t bytes = TotalBytes(tensors);
    ++snapshots_in_flight;
    const bool copying = CopyAndSend(std::move(snapshot), std::move(tensors), [this, bytes](bool queued) {
      --snapshots_in_flight;
      if (queued) counted.snapshot_bytes += bytes;
    });
    if (!copying) --snapshots_in_flight;
    return copying;
  }

  bool Send(GradientReading own, std::vector<NamedTensor>) {
    const auto modules = static_cast<size_t>(parts.module_count - own.first_module.value());
    if (own.mean_of_squares.size() != modules || own.square_of_mean.size() != modules) return false;
    if (!own.progress.empty() && own.progress.size() != modules) return false;
    if (alone()) {
      SendOfAllRanks(GradientExchange::IfFinite(std::move(own)));
    } else {
      gradients.Offer(std::move(own));
    }
    return true;
  }

  void SendOfAllRanks(std::optional<GradientReading> reading) {
    if (!reading.has_value() || !IsAsked<GradientRequest>(reading->request_version)) return;
    parts.agent->Offer(*std::move(reading));
  }

  RankLinkParts parts;
  Committer committer;
  GradientExchange gradients;
  // The request that was due at the step that ended at the last boundary. Whether all ranks were at that step is known
  // at the next boundary only, and only then may the exchange begin: other ranks would take one collective for another.
  std::optional<GradientRequest> gradients_due;
  int64_t step_agreed = -1;  // the step of all ranks when they last told each other
  RequestAgreement agreement;
  int64_t boundaries = 0;  // so far
  // Nothing is under way that all ranks do not have yet. It is the same on all ranks, like all that is heard.
  bool idle = false;
  SessionTotals counted;
  std::shared_ptr<const TimeTotals> time;    // the newest, for reports
  std::shared_ptr<const CacheReport> cache;  // likewise
  int64_t step;
  int frozen_prefix;
  PlanId applied = parts.applied_plan;
  std::optional<Plan> due;    // it is committed, and training is not yet told of it
  bool steps_differ = false;  // once true, it stays so
  // The last attempt to answer a snapshot request. It is the same on all ranks, but for what is still on its way from
  // the device.
  int64_t snapshot_version = -1;
  int64_t snapshot_step = 0;
  int snapshots_in_flight = 0;
  bool snapshot_open = false;    // the present attempt may send
  bool told_not_finite = false;  // the newest loss was told of
  HostCopier copier;             // destroyed first, as it hands on to the others
};

RankLink::RankLink(RankLinkParts parts)
    : own_(std::make_shared<State>(std::move(parts))), idle_(std::make_unique<State>(RankLinkParts())) {}

RankLink::~RankLink() {
  if (const absl::Status status = Stop(/*finished=*/false); !status.ok()) LogWarning(status.message());
}

RankLink::State& RankLink::state() const {
  State* const own = own_.get();
  return own != nullptr ? *own : *idle_;
}

bool RankLink::has_controller() const { return state().parts.agent != nullptr; }

std::optional<SamplingRequest> RankLink::SamplingFor(int64_t step) const {
  const std::optional<SamplingRequest> wanted = state().sampling();
  if (!wanted.has_value() || wanted->interval_steps < 1 || step % wanted->interval_steps != 0) return std::nullopt;
  // A request for a module that has been frozen since tells nothing, nor does one for a module unknown here.
  const int64_t module = wanted->module.value(), first = wanted->first_module.value();
  if (first < 0 || first > module || module < state().frozen_prefix || module >= state().parts.module_count ||
      wanted->batch_size < 2) {
    return std::nullopt;
  }
  return wanted;
}

std::optional<SnapshotRequest> RankLink::SnapshotWanted(int64_t step) {
  State& state = this->state();
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
  return state().IsAsked<SamplingRequest>(request.version);
}

bool RankLink::IsAsked(const SnapshotRequest& request) const {
  return state().IsAsked<SnapshotRequest>(request.version);
}

bool RankLink::IsAsked(const GradientRequest& request) const {
  return state().IsAsked<GradientRequest>(request.version);
}

std::optional<GradientRequest> RankLink::GradientsFor(int64_t step) const {
  const std::optional<GradientRequest> wanted = state().gradient_request();
  if (!wanted.has_value() || wanted->interval_steps < 1 || step % wanted->interval_steps != 0) return std::nullopt;
  const int64_t first = wanted->first_module.value();
  if (first < 0 || first >= state().parts.module_count) return std::nullopt;
  return wanted;
}

bool RankLink::Offer(Upload upload, std::vector<NamedTensor> tensors) {
  if (!has_controller()) return false;
  const auto send = [&](auto& content) { return state().Send(std::move(content), std::move(tensors)); };
  return std::visit(send, upload);
}

void RankLink::Poll() { state().copier.Poll(); }

absl::StatusOr<std::optional<Plan>> RankLink::Commit(int64_t step) {
  State& state = this->state();
  state.step = step;
  const Agent* const agent = state.parts.agent.get();
  if (agent == nullptr) {
    const std::optional<int> prefix = state.parts.plans.At(step);
    if (!prefix.has_value()) return std::nullopt;
    state.frozen_prefix = *prefix;
    return Plan{.frozen_prefix = *prefix, .reason = "plan schedule"};
  }
  EGERIA_ASSIGN_OR_RETURN(std::optional<GradientReading> reading, state.gradients.Finish(state.parts.limits));
  state.SendOfAllRanks(std::move(reading));
  const std::optional<GradientRequest> due = GradientsFor(step);
  bool advertised = false;
  const auto riders = [&](const std::vector<int64_t>& minima) {
    if (!minima.empty()) state.Hear(minima);
    std::optional<std::vector<int64_t>> numbers = state.Advertise();
    advertised = numbers.has_value();
    return numbers;
  };
  EGERIA_ASSIGN_OR_RETURN(const Committer::Outcome outcome, state.committer.Tick(state.held(), riders));
  if (outcome.dispute.has_value()) state.TellDispute(*outcome.dispute);
  if (!state.alone() && !state.steps_differ) {
    if (state.gradients_due.has_value()) {
      EGERIA_RETURN_IF_ERROR(state.gradients.Begin(*state.gradients_due, state.step_agreed));
    }
    state.gradients_due = advertised ? due : std::nullopt;  // the request may just have been withdrawn
  }
  if (state.steps_differ) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "STEPS_DIFFER",
                      "the ranks are not at the same step, this one at ", step,
                      ": every rank must take each optimizer step; no plan can be applied any more");
  }
  if (outcome.apply.has_value()) {
    state.due = agent->plan(*outcome.apply);
    if (!state.due.has_value()) {
      return NamedError(absl::StatusCode::kInternal, "PLAN_LOST", "plan ", outcome.apply->value(),
                        " is committed, but this rank does not have it");
    }
    ++state.counted.commits;
    state.applied = *outcome.apply;
  }
  if (!state.due.has_value()) return std::nullopt;
  const bool saves_nothing = step == state.parts.total_steps && state.due->frozen_prefix > state.frozen_prefix;
  if (saves_nothing) return std::nullopt;
  state.frozen_prefix = state.due->frozen_prefix;
  return std::exchange(state.due, std::nullopt);
}

PlanId RankLink::applied_plan() const { return state().applied; }

void RankLink::Report(int64_t step, const at::Tensor& loss, const std::vector<double>& learning_rates,
                      int frozen_prefix, int zero_lr_prefix) {
  State& state = this->state();
  state.step = step;
  state.frozen_prefix = frozen_prefix;
  if (Agent* const agent = state.parts.agent.get(); agent != nullptr) {
    StepReport report;
    report.step = step;
    report.learning_rates = learning_rates;
    report.zero_lr_prefix = zero_lr_prefix;
    report.frozen_by_script = state.counted.frozen_by_script;
    report.frozen_prefix = frozen_prefix;
    report.applied_plan = state.applied;
    report.time = state.time;
    report.cache = state.cache;
    // The loss may not have been computed yet; the report waits for it, the training thread does not. Meanwhile a CUDA
    // graph may put the next step's loss into the same place, so that a copy is made.
    const bool on_device = at::accelerator::isAccelerator(state.parts.device.type());
    const bool copying = HasValues(loss) && loss.numel() == 1 &&
                         state.copier.Copy({{"loss", loss.detach().to(at::kFloat, /*non_blocking=*/false, on_device)}},
                                           [&state, agent, report](std::vector<WireTensor> tensors) {
                                             StepReport with_loss = report;
                                             std::memcpy(&with_loss.loss.emplace(), tensors[0].data(), sizeof(float));
                                             state.TellIfNotFinite(report.step, *with_loss.loss);
                                             agent->ReportStep(with_loss);
                                           });
    if (!copying) agent->ReportStep(report);
  }
  if (state.parts.metrics != nullptr) state.parts.metrics->Update(totals());
}

void RankLink::RecordSwitch(bool unfreeze, bool identical) {
  ++(unfreeze ? state().counted.unfreezes : state().counted.freezes);
  if (!identical) ++state().counted.checksum_mismatches;
}

void RankLink::RecordUndoneSwitch() { ++state().counted.switches_undone; }

void RankLink::RecordDroppedSample() { ++state().counted.samples_dropped; }

void RankLink::SetModelTotals(double frozen_share, int64_t bytes_reduced) {
  state().counted.frozen_share = frozen_share;
  state().counted.bytes_reduced = bytes_reduced;
}

void RankLink::SetFrozenByScript(int modules) { state().counted.frozen_by_script = modules; }

void RankLink::SetAccount(TimeTotals totals) {
  State& state = this->state();
  state.time = std::make_shared<TimeTotals>(totals);
  state.counted.account = std::move(totals);
}

void RankLink::SetCacheTotals(CacheTotals totals) {
  State& state = this->state();
  if (totals.state != "none") {
    CacheReport report = {totals.state, totals.reason, totals.hits, 0, totals.bytes_read, totals.saved_seconds};
    for (const auto& [reason, samples] : totals.misses) report.computed += samples;
    state.cache = std::make_shared<CacheReport>(std::move(report));
  }
  state.counted.cache = std::move(totals);
}

AgentCounters RankLink::counters() const {
  return has_controller() ? state().parts.agent->counters() : AgentCounters();
}

SessionTotals RankLink::totals() const {
  SessionTotals totals = state().counted;
  totals.steps = state().step;
  totals.frozen_prefix = state().frozen_prefix;
  const AgentCounters counters = this->counters();
  totals.samples_sent = counters.samples_sent;
  totals.samples_dropped += counters.samples_dropped;
  totals.snapshots_sent = counters.snapshots_sent;
  totals.reconnects = counters.reconnects;
  totals.connected = counters.connected;
  return totals;
}

absl::Status RankLink::Stop(bool finished, std::chrono::milliseconds patience) {
  State& state = this->state();
  absl::Status status = state.committer.Stop(patience);
  // A collective that did not end in time will not end at all.
  const std::chrono::milliseconds left = status.ok() ? patience : std::chrono::milliseconds(1);
  status.Update(state.gradients.Stop({state.parts.limits.interrupted, left}));
  if (state.parts.agent != nullptr) {
    state.copier.Drain();
    state.parts.agent->Stop(finished);
  }
  return status;
}

}  // namespace egeria::worker

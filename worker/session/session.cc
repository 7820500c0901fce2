#include "worker/session/session.h"

#include <exception>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/commit/parameter_checksum.h"
#include "worker/commit/rank_change.h"
#include "worker/commit/torch_status.h"
#include "worker/session/probe.h"

namespace egeria::worker {
namespace {

// A comparison hashes all parameters. In so many steps it takes well under a thousandth of the time.
constexpr int64_t kStepsBetweenComparisons = 1'000;

RankLinkParts LinkParts(SessionParts* parts) {
  RankLinkParts link;
  link.agent = std::move(parts->agent);
  link.plans = std::move(parts->plans);
  link.commit_group = parts->commit_group;
  link.device = parts->device;
  link.module_count = static_cast<int>(parts->freezer->modules().size());
  link.metrics = parts->metrics;
  link.step = parts->step;
  link.total_steps = parts->total_steps;
  link.frozen_prefix = std::max(parts->frozen_prefix, parts->freeze_first);
  link.applied_plan = parts->applied_plan;
  return link;
}

}  // namespace

Session::Session(SessionParts parts)
    : freezer_(parts.freezer),
      reducer_(parts.reducer),
      group_(parts.commit_group),
      snapshot_tensors_(std::move(parts.snapshot_tensors)),
      frozen_forward_(std::move(parts.frozen_forward)),
      fused_(std::move(parts.fused)),
      link_(LinkParts(&parts)),
      step_(parts.step),
      freeze_first_(parts.freeze_first),
      restored_prefix_(std::max(parts.frozen_prefix, freeze_first_)),
      resync_(std::move(parts.resync)) {
  link_.SetFrozenByScript(freeze_first_);
}

Session::~Session() {
  if (const absl::Status status = Stop(/*finished=*/false); !status.ok()) LogWarning(status.message());
}

absl::StatusOr<std::unique_ptr<Session>> Session::Start(SessionParts parts) {
  std::unique_ptr<Session> session(new Session(std::move(parts)));
  EGERIA_RETURN_IF_ERROR(session->freezer_->Apply(session->restored_prefix_).status());
  EGERIA_RETURN_IF_ERROR(session->RebuildReducer());
  session->FollowPrefix();
  return session;
}

absl::Status Session::RebuildReducer() {
  return reducer_->Rebuild(freezer_->active_parameters(), freezer_->active_buffers());
}

void Session::FollowPrefix() {
  const int frozen = freezer_->frozen_prefix();
  if (frozen_forward_ != nullptr) frozen_forward_->Follow(freezer_->modules(), frozen);
  if (fused_ != nullptr) fused_->Follow(std::span(freezer_->modules()).first(static_cast<size_t>(frozen)));
}

void Session::BeginStep() {
  account_.BeginForward();
  reducer_->BeforeForward();
  captured_.reset();
  sampling_ = link_.SamplingFor(step_ + 1);
  // The probe is no collective, so ranks that are not asked for it need not take part.
  if (sampling_.has_value() && !link_.IsAsked(*sampling_)) sampling_.reset();
  if (meter_ != nullptr && meter_->frozen_prefix() != freezer_->frozen_prefix()) meter_.reset();
  if (meter_ != nullptr) return;  // it needs more steps
  const std::optional<GradientRequest> gradients = link_.GradientsFor(step_ + 1);
  // Frozen modules have no gradients.
  if (!gradients.has_value() || gradients->first_module.value() < freezer_->frozen_prefix()) return;
  const TimeLedger::Spending spending(&account_, spent_on::kGradients);
  meter_ = std::make_unique<GradientMeter>(freezer_, group_, *gradients);
}

at::Tensor Session::Forward(at::Tensor input, const BatchSamples* samples) {
  if (meter_ != nullptr) {
    const TimeLedger::Spending spending(&account_, spent_on::kGradients);
    meter_->BeforeForward(input);
  }
  return RunModules(std::move(input), samples);
}

void Session::AfterBackward() {
  if (meter_ == nullptr) return;
  account_.Add(spent_on::kGradients, meter_->backward_seconds());
  const TimeLedger::Spending spending(&account_, spent_on::kGradients);
  absl::StatusOr<std::optional<GradientReading>> reading = meter_->Measure();
  if (reading.ok() && !reading->has_value()) return;
  meter_.reset();
  if (reading.ok()) {
    (*reading)->step = step_ + 1;
    link_.Offer(**std::move(reading));
  } else if (!std::exchange(gradients_failed_, true)) {
    LogWarning("a step tells nothing of its gradients: ", reading.status().message());
  }
}

at::Tensor Session::RunModules(at::Tensor input, const BatchSamples* samples) {
  const std::vector<LayerModule>& modules = freezer_->modules();
  const int frozen = freezer_->frozen_prefix();
  const bool gradients = at::GradMode::is_enabled();
  int first = 0;
  // An input that is captured inside the frozen prefix has to be computed.
  const bool inside =
      sampling_.has_value() && sampling_->first_module.value() > 0 && sampling_->first_module.value() < frozen;
  const bool cached = frozen_forward_ != nullptr && frozen_forward_->has_prefix() && samples != nullptr;
  if (frozen > 0 && !inside && (cached || fused_ != nullptr)) {
    if (Captures(0)) Capture(input);
    input = cached ? frozen_forward_->Run(input, *samples, fused_.get()) : fused_->Run(input);
    first = frozen;
  }
  for (int i = first; i < static_cast<int>(modules.size()); ++i) {
    if (Captures(i)) Capture(input);
    at::AutoGradMode mode(gradients && i >= frozen);
    input = modules[i].Run(std::move(input));
  }
  return input;
}

at::Tensor Session::Evaluate(at::Tensor input) {
  const at::NoGradGuard no_gradients;
  const std::vector<LayerModule>& modules = freezer_->modules();
  size_t first = 0;
  if (fused_ != nullptr && freezer_->frozen_prefix() > 0) {
    input = fused_->Run(input);
    first = static_cast<size_t>(freezer_->frozen_prefix());
  }
  for (size_t i = first; i < modules.size(); ++i) input = modules[i].Run(std::move(input));
  return input;
}

void Session::Capture(const at::Tensor& input) {
  const TimeLedger::Spending spending(&account_, spent_on::kProbes);
  if (input.size(0) < sampling_->batch_size) {
    if (!std::exchange(small_batch_told_, true)) {
      LogWarning("a batch of ", input.size(0), " samples gives no reading: ", sampling_->batch_size, " are asked for");
    }
    return;
  }
  // The input is copied, since what follows may change it in place, and the whole batch need not stay alive.
  captured_ = input.detach().narrow(0, 0, sampling_->batch_size).clone();
}

absl::Status Session::EndStep(const at::Tensor& loss, const std::vector<double>& learning_rates, int zero_lr_prefix) {
  ++step_;
  AccountForCache();
  account_.EndStep(freezer_->frozen_prefix(), freezer_->frozen_share());
  const TimeLedger::Spending spending(&account_, spent_on::kHooks);
  link_.Poll();
  Probe();
  AnswerSnapshotRequest();
  EGERIA_RETURN_IF_ERROR(CommitAndSwitch());
  EGERIA_RETURN_IF_ERROR(CompareRanksIfDue());
  link_.SetModelTotals(freezer_->frozen_share(), reducer_->bytes_reduced());
  if (frozen_forward_ != nullptr) link_.SetCacheTotals(frozen_forward_->totals());
  if (step_ % kTotalsEvery == 0) {
    account_.SetElsewhere(spent_on::kReference, link_.counters().reference_seconds);
    link_.SetAccount(account_.totals());
  }
  link_.Report(step_, loss, learning_rates, freezer_->frozen_prefix(), zero_lr_prefix);
  return absl::OkStatus();
}

void Session::AccountForCache() {
  if (frozen_forward_ == nullptr) return;
  const double spent = frozen_forward_->spent_seconds();
  if (spent > cache_spent_) account_.Add(spent_on::kCache, spent - cache_spent_);
  cache_spent_ = spent;
}

void Session::Probe() {
  if (!sampling_.has_value() || !captured_.defined()) return;
  const TimeLedger::Spending spending(&account_, spent_on::kProbes);
  const at::Tensor input = std::exchange(captured_, at::Tensor());
  try {
    const at::Tensor compared = worker::Probe(freezer_->modules(), sampling_->first_module.value(),
                                              sampling_->module.value(), input, sampling_->metric);
    link_.Offer(SampleOf(*sampling_, step_), {{"input", input}, {"compared", compared}});
  } catch (const std::exception& error) {
    link_.RecordDroppedSample();
    if (!std::exchange(probe_failed_, true)) {
      LogWarning("layer module ", sampling_->module.value(),
                 " cannot be probed, so it will not freeze: ", MessageOf(error));
    }
  }
}

void Session::AnswerSnapshotRequest() {
  const std::optional<SnapshotRequest> wanted = link_.SnapshotWanted(step_);
  if (!wanted.has_value() || wanted->module.value() >= static_cast<int64_t>(snapshot_tensors_.size())) return;
  const TimeLedger::Spending spending(&account_, spent_on::kSnapshots);
  for (ModuleIndex module = wanted->first_module; module <= wanted->module; module = module.next()) {
    link_.Offer(Snapshot{module, step_, wanted->version}, snapshot_tensors_[module.value()]);
  }
}

absl::Status Session::CommitAndSwitch() {
  std::optional<Plan> plan;
  {
    const TimeLedger::Spending spending(&account_, spent_on::kAgreement);
    EGERIA_ASSIGN_OR_RETURN(plan, link_.Commit(step_));
  }
  return plan.has_value() ? SwitchTo(plan->frozen_prefix, plan->id) : absl::OkStatus();
}

absl::Status Session::SwitchTo(int prefix, PlanId plan) {
  const int before = freezer_->frozen_prefix();
  prefix = std::max(prefix, freeze_first_);
  if (prefix == before || switches_ended_) return absl::OkStatus();
  const TimeLedger::Spending spending(&account_, spent_on::kSwitches);
  EGERIA_ASSIGN_OR_RETURN(const bool were_identical, WereIdentical());
  if (!were_identical) return absl::OkStatus();
  account_.Disturb();
  try {
    // The modules that freeze now must be the same everywhere. Each forward pass begins with the same collective, so
    // that a rank that cannot take part in it could not train either.
    reducer_->SyncBuffers();
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kUnavailable, "REDUCER_FAILED", MessageOf(error));
  }
  const absl::Status changed = ChangePrefix(prefix);
  if (absl::IsAborted(changed)) {
    switches_ended_ = true;
    link_.RecordUndoneSwitch();
    LogWarning(prefix, " layer modules cannot be frozen, so ", before, " stay so: ", changed.message());
    return absl::OkStatus();
  }
  EGERIA_RETURN_IF_ERROR(changed);
  FollowPrefix();
  EGERIA_ASSIGN_OR_RETURN(const bool identical, RanksIdentical());
  compared_at_ = step_;
  const bool unfreezes = prefix < before;
  link_.RecordSwitch(unfreezes, identical);
  switches_.push_back({step_, unfreezes, prefix, identical, plan});
  return identical ? absl::OkStatus() : EndDivergence(absl::StrCat("after a switch to frozen prefix ", prefix));
}

absl::StatusOr<bool> Session::WereIdentical() {
  if (were_identical_) return true;
  EGERIA_ASSIGN_OR_RETURN(were_identical_, RanksIdentical());
  if (!were_identical_) {
    switches_ended_ = true;
    LogWarning("[RANKS_DIFFER] step ", step_, ": the ranks' parameters differ although nothing has been switched, so ",
               "nothing freezes: give all ranks the same weights at the start");
  }
  return were_identical_;
}

absl::Status Session::CompareRanksIfDue() {
  if (group_ == nullptr || !were_identical_ || freezer_->frozen_prefix() == 0) return absl::OkStatus();
  if (step_ - compared_at_ < kStepsBetweenComparisons) return absl::OkStatus();
  const TimeLedger::Spending spending(&account_, spent_on::kSwitches);
  compared_at_ = step_;
  EGERIA_ASSIGN_OR_RETURN(const bool identical, RanksIdentical());
  if (identical) return absl::OkStatus();
  return EndDivergence(absl::StrCat("with ", freezer_->frozen_prefix(), " frozen modules"));
}

absl::Status Session::EndDivergence(const std::string& when) {
  const std::string what = absl::StrCat("step ", step_, ": the ranks' parameters differ ", when);
  if (resync_ == nullptr) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "RANKS_DIFFER", what,
                      ": the training is stopped before it goes wrong. Resume it from a checkpoint, or let "
                      "--on-divergence resync give all ranks what rank 0 has");
  }
  if (frozen_forward_ != nullptr) frozen_forward_->Follow(freezer_->modules(), 0);  // other weights may be frozen then
  EGERIA_RETURN_IF_ERROR(resync_());
  FollowPrefix();
  EGERIA_ASSIGN_OR_RETURN(const bool identical, RanksIdentical());
  if (!identical) {
    return NamedError(absl::StatusCode::kFailedPrecondition, "RANKS_DIFFER", what, ", and still do with rank 0's");
  }
  LogError("[RANKS_DIFFER] ", what, ": all ranks go on with what rank 0 has");
  return absl::OkStatus();
}

absl::Status Session::ChangePrefix(int prefix) {
  const int before = freezer_->frozen_prefix();
  GradientReducer::Prepared reducer;
  RankChange change;
  change.apply = [&]() -> absl::Status {
    EGERIA_RETURN_IF_ERROR(freezer_->Apply(prefix).status());
    EGERIA_ASSIGN_OR_RETURN(reducer, reducer_->Prepare(freezer_->active_parameters(), freezer_->active_buffers()));
    return absl::OkStatus();
  };
  change.undo = [&] {
    reducer = GradientReducer::Prepared();
    freezer_->TakeBack(before);
  };
  EGERIA_RETURN_IF_ERROR(ChangeAllOrNone(group_, change));
  reducer_->Use(std::move(reducer));
  return absl::OkStatus();
}

uint64_t Session::Hash() const {
  std::vector<at::Tensor> tensors;
  const std::vector<LayerModule>& modules = freezer_->modules();
  for (size_t i = 0; i < modules.size(); ++i) {
    for (const NamedTensor& parameter : modules[i].parameters()) tensors.push_back(parameter.tensor);
    if (static_cast<int>(i) >= freezer_->frozen_prefix()) continue;
    for (const NamedTensor& buffer : modules[i].buffers()) tensors.push_back(buffer.tensor);
  }
  return HashTensors(tensors);
}

absl::StatusOr<bool> Session::RanksIdentical() const { return IdenticalOnAllRanks(Hash(), group_); }

SessionTotals Session::totals() const {
  SessionTotals totals = link_.totals();
  totals.frozen_prefix = freezer_->frozen_prefix();
  totals.frozen_share = freezer_->frozen_share();
  totals.bytes_reduced = reducer_->bytes_reduced();
  return totals;
}

absl::Status Session::Stop(bool finished) {
  if (frozen_forward_ != nullptr) frozen_forward_->Stop(finished);
  return link_.Stop(finished);
}

}  // namespace egeria::worker

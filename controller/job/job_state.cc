#include "controller/job/job_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/policy/policy_proto.h"
#include "controller/job/gradient_requests.h"
#include "controller/job/policy_inputs.h"
#include "controller/job/proto_time.h"
#include "controller/job/registration.h"

namespace egeria::controller {
namespace {

using storage::v1::Fact;

template <typename... Args>
absl::Status Impossible(const Args&... what) {
  return absl::InternalError(absl::StrCat("impossible fact: ", what...));
}

const char* ActionFor(int from, int to) {
  return policy::ActionName(to < from ? policy::Action::kUnfreeze : policy::Action::kFreeze);
}

absl::Status Make(const v1::PolicyConfig& config, const policy::JobShape& shape,
                  std::unique_ptr<policy::Policy>* made) {
  auto policy = policy::MakePolicy(policy::FromProto(config), shape);
  if (!policy.ok()) return Impossible("begun with a policy that cannot be: ", policy.status().message());
  *made = *std::move(policy);
  return absl::OkStatus();
}

bool Matches(const policy::Decision& decision, const v1::Decision& fact) {
  return decision.step == fact.step() && decision.frozen_prefix == fact.frozen_prefix() &&
         policy::ActionName(decision.action) == fact.action();
}

std::string Number(const std::optional<double>& value) { return value ? absl::StrFormat("%.17g", *value) : "-"; }

}  // namespace

absl::StatusOr<JobState::Checked> JobState::Check(std::span<const Fact> facts) const {
  Checked checked;
  checked.facts_ = facts;
  int64_t last_step = last_step_;
  for (const Fact& fact : facts) {
    // A fact of any other kind changes which facts may follow it.
    if (facts.size() > 1 && fact.fact_case() != Fact::kObserved) {
      return Impossible("several facts at once that are not all observations");
    }
    EGERIA_RETURN_IF_ERROR(CheckOne(fact, last_step, &checked.policy_));
    last_step = fact.observed().step();
  }
  return checked;
}

absl::Status JobState::CheckOne(const Fact& fact, int64_t last_step, PolicyPtr* policy) const {
  if (!registered() && fact.fact_case() != Fact::kRegistered) {
    return Impossible("the first one is no registration");
  }
  const bool needs_empty_queue = fact.fact_case() != Fact::kObserved && fact.fact_case() != Fact::kDecided;
  if (needs_empty_queue && !pending_.empty()) return Impossible("a decision of the policy is waiting");
  switch (fact.fact_case()) {
    case Fact::kRegistered: return CheckRegistered(fact.registered(), policy);
    case Fact::kGenerationStarted: return CheckGeneration(fact.generation_started(), policy);
    case Fact::kObserved: return CheckObserved(fact.observed(), last_step);
    case Fact::kDecided: return CheckDecided(fact.decided());
    case Fact::kModeChanged:
      if (fact.mode_changed().mode() != v1::MODE_ACT && fact.mode_changed().mode() != v1::MODE_OBSERVE) {
        return Impossible("mode ", static_cast<int>(fact.mode_changed().mode()));
      }
      return absl::OkStatus();
    case Fact::kPauseChanged: return absl::OkStatus();
    case Fact::kFinished: return finished_ ? Impossible("finished twice") : absl::OkStatus();
    case Fact::FACT_NOT_SET: break;
  }
  return Impossible("of no kind that this version knows");
}

absl::Status JobState::CheckRegistered(const storage::v1::JobRegistered& fact, PolicyPtr* policy) const {
  const v1::RegisterJobRequest& request = fact.request();
  if (registered()) return Impossible("registered twice");
  if (request.modules_size() < 2) return Impossible("a job of ", request.modules_size(), " modules");
  if (request.frozen_prefix() < 0 || request.frozen_prefix() >= request.modules_size()) {
    return Impossible("registered with frozen prefix ", request.frozen_prefix());
  }
  if (request.generation() < 0 || request.step() < 0 || request.applied_plan() < 0) {
    return Impossible("registered with a negative generation, step or plan");
  }
  return Make(request.policy(), ShapeOf(request), policy);
}

absl::Status JobState::CheckGeneration(const storage::v1::GenerationStarted& fact, PolicyPtr* policy) const {
  const bool newer = fact.generation() > generation_.value();
  const bool knows_better = fact.generation() == generation_.value() && fact.applied_plan() > newest_plan().value();
  if (!newer && !knows_better) {
    return Impossible("generation ", fact.generation(), " started after ", generation_.value());
  }
  if (fact.step() < 0 || fact.applied_plan() < 0) return Impossible("a negative step or plan");
  if (fact.frozen_prefix() < 0 || fact.frozen_prefix() >= module_count()) {
    return Impossible("a generation with frozen prefix ", fact.frozen_prefix());
  }
  const v1::RegisterJobRequest job = RegistrationFrom(fact);
  policy::JobShape shape = ShapeOf(job);
  shape.losses_reported = LossesReportedFrom(fact);
  return Make(job.policy(), shape, policy);
}

absl::Status JobState::CheckObserved(const v1::Observation& fact, int64_t last_step) const {
  if (finished_) return Impossible("an observation after the job's end");
  if (fact.step() < last_step) return Impossible("observed step ", fact.step(), " after ", last_step);
  if (fact.has_plasticity() != fact.has_module()) return Impossible("a reading without its module");
  if (fact.has_module() && (fact.module() < 0 || fact.module() >= module_count())) {
    return Impossible("a reading of module ", fact.module());
  }
  if (fact.zero_lr_prefix() < 0 || fact.zero_lr_prefix() >= module_count()) {
    return Impossible(fact.zero_lr_prefix(), " modules that do not change");
  }
  if (fact.frozen_by_script() < 0 || fact.frozen_by_script() >= module_count()) {
    return Impossible(fact.frozen_by_script(), " modules that the script has frozen");
  }
  const bool finite =
      std::isfinite(fact.plasticity()) && std::isfinite(fact.loss()) && std::isfinite(fact.learning_rate());
  if (!finite) return Impossible("an observation that is not finite");
  if (!fact.has_gradients()) return absl::OkStatus();
  const absl::Status gradients = CheckGradients(fact.gradients(), module_count());
  return gradients.ok() ? gradients : Impossible("an observation with ", gradients.message());
}

absl::Status JobState::CheckDecided(const v1::Decision& fact) const {
  if (finished_) return Impossible("a decision after the job's end");
  if (fact.frozen_prefix() < 0 || fact.frozen_prefix() >= module_count()) {
    return Impossible("decided frozen prefix ", fact.frozen_prefix());
  }
  switch (fact.origin()) {
    case v1::DECISION_ORIGIN_POLICY: break;
    case v1::DECISION_ORIGIN_OPERATOR:
      if (!pending_.empty()) return Impossible("an operator overtook a decision of the policy");
      if (mode_ != v1::MODE_ACT) return Impossible("an operator's decision in observe mode");
      if (fact.step() < last_step_) return Impossible("an operator's decision in the past");
      break;
    default: return Impossible("a decision of origin ", static_cast<int>(fact.origin()));
  }
  const int64_t expected = mode_ == v1::MODE_ACT ? newest_plan().value() + 1 : 0;
  if (fact.plan_id() != expected) return Impossible("plan ", fact.plan_id(), " where ", expected, " is due");
  return absl::OkStatus();
}

absl::Status JobState::Apply(const Fact& fact) {
  EGERIA_ASSIGN_OR_RETURN(Checked checked, Check({&fact, 1}));
  Apply(std::move(checked));
  return absl::OkStatus();
}

void JobState::Apply(Checked checked) {
  for (const Fact& fact : checked.facts_) ApplyOne(fact, std::move(checked.policy_));
}

void JobState::ApplyOne(const Fact& fact, PolicyPtr policy) {
  now_ = TimeFromProto(fact.time());
  fact_bytes_ += static_cast<int64_t>(fact.ByteSizeLong());
  last_fact_time_ = std::max(last_fact_time_, fact.has_clock() ? TimeFromProto(fact.clock()) : now_);
  switch (fact.fact_case()) {
    case Fact::kRegistered: ApplyRegistered(fact.registered(), std::move(policy)); break;
    case Fact::kGenerationStarted: ApplyGeneration(fact.generation_started(), std::move(policy)); break;
    case Fact::kObserved: ApplyObserved(fact.observed()); break;
    case Fact::kDecided: ApplyDecided(fact.decided()); break;
    case Fact::kModeChanged: ApplyMode(fact.mode_changed().mode()); break;
    case Fact::kPauseChanged: paused_ = fact.pause_changed().paused(); break;
    case Fact::kFinished:
      finished_ = true;
      last_step_ = std::max(last_step_, fact.finished().step());
      break;
    case Fact::FACT_NOT_SET: break;
  }
}

void JobState::ApplyRegistered(const storage::v1::JobRegistered& fact, PolicyPtr policy) {
  registration_ = fact.request();
  for (v1::LayerModule& module : *registration_.mutable_modules()) module.clear_graph();
  ownership_ = {fact.owner(), fact.secret_sha256()};
  policy_config_ = policy::FromProto(registration_.policy());
  losses_reported_ = !registration_.losses_unreported();
  policy_ = std::move(policy);
  generation_ = Generation(registration_.generation());
  if (registration_.start_id() != 0) starts_[registration_.start_id()] = generation_;
  mode_ = registration_.mode() == v1::MODE_OBSERVE ? v1::MODE_OBSERVE : v1::MODE_ACT;
  last_step_ = registration_.step();
  base_prefix_ = registration_.frozen_prefix();
  base_plan_ = PlanId(NewestPlanOf(registration_));
  if (base_prefix_ != policy_->frozen_prefix()) {
    AdoptFromWorker(last_step_, base_prefix_, absl::StrCat("registered at step ", last_step_, " with this prefix"));
  }
}

v1::RegisterJobRequest JobState::RegistrationFrom(const storage::v1::GenerationStarted& fact) const {
  v1::RegisterJobRequest registration =
      fact.has_changed() ? WithSettingsOf(registration_, fact.changed()) : registration_;
  // The job begins where its oldest generation does.
  registration.set_step(std::min(registration.step(), fact.step()));
  return registration;
}

void JobState::ApplyGeneration(const storage::v1::GenerationStarted& fact, PolicyPtr policy) {
  registration_ = RegistrationFrom(fact);
  if (!fact.secret_sha256().empty()) ownership_.secret_hash = fact.secret_sha256();
  policy_config_ = policy::FromProto(registration_.policy());
  // A job that was once without losses stays without: readings that counted then must count in the rebuilt policy.
  losses_reported_ = LossesReportedFrom(fact);
  RollBackTo(fact.step(), std::move(policy));
  generation_ = Generation(fact.generation());
  if (fact.start_id() != 0) starts_[fact.start_id()] = generation_;
  finished_ = false;
  plans_.clear();
  base_prefix_ = fact.frozen_prefix();
  base_plan_ = PlanId(fact.applied_plan());
  last_step_ = std::max(last_step_, fact.step());
  // In observe mode training never had what the policy decided, so its checkpoint says nothing about that.
  if (mode_ == v1::MODE_ACT && base_prefix_ != policy_->frozen_prefix()) {
    AdoptFromWorker(
        fact.step(), base_prefix_,
        absl::StrCat("adopted from the checkpoint of step ", fact.step(), ", generation ", fact.generation()));
    if (base_prefix_ < last_zero_lr_prefix_) {  // the new processes tell it once more
      v1::Observation forgotten;
      forgotten.set_step(last_step_);
      forgotten.set_zero_lr_prefix(base_prefix_);
      ApplyObserved(forgotten);
    }
  }
}

void JobState::ApplyObserved(const v1::Observation& fact) {
  Observed observed{ObservationFromProto(fact)};
  if (fact.has_loss_is_finite()) observed.loss_is_finite = fact.loss_is_finite();
  observed.seen = !paused_ && observed.loss_is_finite.value_or(loss_is_finite_);
  RecordObservation(observed);
  if (!observed.seen) return;
  if (auto decision = policy_->Observe(observed.observation)) {
    pending_.push_back(*std::move(decision));
    ++epoch_;
  }
}

std::string JobState::blocked() const {
  if (loss_is_finite_) return policy_->blocked();
  return "[LOSS_NOT_FINITE] the loss is NaN or infinite, and nothing freezes while it is";
}

void JobState::ApplyDecided(const v1::Decision& fact) {
  if (fact.origin() == v1::DECISION_ORIGIN_OPERATOR) {
    last_step_ = fact.step();
    policy_->Adopt(fact.step(), fact.frozen_prefix());
    ++epoch_;
  } else if (!pending_.empty() && Matches(pending_.front(), fact)) {
    pending_.pop_front();
  } else {
    // Only a journal of another version gets here. The decision of that time has taken effect, and stands.
    ++divergences_;
    pending_.clear();
    if (policy_->frozen_prefix() != fact.frozen_prefix()) policy_->Adopt(fact.step(), fact.frozen_prefix());
    ++epoch_;
  }
  if (fact.plan_id() != 0) {
    v1::Plan& plan = plans_.emplace_back();
    plan.set_plan_id(fact.plan_id());
    plan.set_generation(generation_.value());
    plan.set_frozen_prefix(fact.frozen_prefix());
    plan.set_reason(fact.reason());
  }
  RecordDecision(fact);
}

void JobState::ApplyMode(v1::Mode mode) {
  mode_ = mode;
  if (mode == v1::MODE_OBSERVE || policy_->frozen_prefix() == planned_prefix()) return;
  policy::Decision decision;
  decision.step = last_step_;
  decision.frozen_prefix = policy_->frozen_prefix();
  decision.action = decision.frozen_prefix < planned_prefix() ? policy::Action::kUnfreeze : policy::Action::kFreeze;
  decision.reason = "decided in observe mode, and a plan since the job is in act mode";
  pending_.push_back(std::move(decision));
}

void JobState::AdoptFromWorker(int64_t step, int frozen_prefix, const std::string& reason) {
  v1::Decision decision;
  decision.set_step(step);
  decision.set_action(ActionFor(policy_->frozen_prefix(), frozen_prefix));
  decision.set_frozen_prefix(frozen_prefix);
  decision.set_reason(reason);
  decision.set_origin(v1::DECISION_ORIGIN_WORKER);
  decision.set_plan_id(base_plan_.value());
  policy_->Adopt(step, frozen_prefix);
  ++epoch_;
  RecordDecision(std::move(decision));
}

void JobState::RecordObservation(const Observed& observed) {
  const policy::Observation& observation = observed.observation;
  last_step_ = observation.step;
  if (observation.loss) last_loss_step_ = observation.step;
  loss_is_finite_ = observed.loss_is_finite.value_or(loss_is_finite_);
  // Values that the policy has not seen, as it was paused or the loss was not finite, are news again afterwards.
  if (observed.seen && observation.learning_rate) last_learning_rate_ = observation.learning_rate;
  if (observed.seen && observation.zero_lr_prefix) last_zero_lr_prefix_ = *observation.zero_lr_prefix;
  if (observed.seen && observation.frozen_by_script) frozen_by_script_ = *observation.frozen_by_script;
  if (observation.plasticity) ++readings_;
  observations_.push_back(observed);
}

void JobState::RecordDecision(v1::Decision decision) {
  *decision.mutable_time() = TimeToProto(now_);
  decisions_.push_back(std::move(decision));
  decision_after_.push_back(observations_.size());
}

void JobState::RollBackTo(int64_t step, PolicyPtr policy) {
  ++epoch_;
  policy_ = std::move(policy);
  last_step_ = registration_.step();
  last_loss_step_ = -1;
  loss_is_finite_ = true;
  last_learning_rate_.reset();
  last_zero_lr_prefix_ = 0;
  frozen_by_script_ = 0;
  readings_ = 0;
  std::vector<v1::Decision> decisions = std::exchange(decisions_, {});
  const std::vector<size_t> after = std::exchange(decision_after_, {});
  const std::vector<Observed> observations = std::exchange(observations_, {});
  size_t next = 0;
  auto keep_observations_before = [&](size_t end) {
    for (; next < end; ++next) {
      const Observed& observed = observations[next];
      if (observed.observation.step > step) continue;
      RecordObservation(observed);
      if (observed.seen) policy_->Observe(observed.observation);
    }
  };
  for (size_t i = 0; i < decisions.size(); ++i) {
    keep_observations_before(after[i]);
    if (decisions[i].step() > step) continue;
    // The observations lead to the policy's own decisions again.
    if (decisions[i].origin() != v1::DECISION_ORIGIN_POLICY) {
      policy_->Adopt(decisions[i].step(), decisions[i].frozen_prefix());
    }
    last_step_ = std::max(last_step_, decisions[i].step());
    decisions_.push_back(std::move(decisions[i]));
    decision_after_.push_back(observations_.size());
  }
  keep_observations_before(observations.size());
}

std::optional<Generation> JobState::GenerationOf(uint64_t start_id) const {
  const auto found = starts_.find(start_id);
  return found == starts_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<v1::Plan> JobState::PlansAbove(PlanId watermark, size_t limit) const {
  std::vector<v1::Plan> plans;
  size_t next = static_cast<size_t>(std::max<int64_t>(0, watermark.value() - base_plan_.value()));
  while (next < plans_.size() && plans.size() < limit) plans.push_back(plans_[next++]);
  return plans;
}

Fact JobState::FactFor(const policy::Decision& decision, v1::DecisionOrigin origin, absl::Time now) const {
  Fact fact;
  *fact.mutable_time() = TimeToProto(now);
  v1::Decision* decided = fact.mutable_decided();
  decided->set_step(decision.step);
  decided->set_action(policy::ActionName(decision.action));
  decided->set_frozen_prefix(decision.frozen_prefix);
  decided->set_reason(decision.reason);
  decided->set_origin(origin);
  decided->set_plan_id(mode_ == v1::MODE_ACT ? newest_plan().value() + 1 : 0);
  return fact;
}

bool JobState::VisitHistory(HistoryPlace* place, absl::FunctionRef<void(const v1::ExportRecord&)> visit) const {
  v1::ExportRecord record;
  if (place->decisions < decisions_.size() && decision_after_[place->decisions] <= place->observations) {
    *record.mutable_decision() = decisions_[place->decisions++];
  } else if (place->observations < observations_.size()) {
    const Observed& observed = observations_[place->observations++];
    if (!observed.seen) return true;
    *record.mutable_observation() = ObservationToProto(observed.observation);
  } else {
    return false;
  }
  visit(record);
  return true;
}

std::string JobState::DebugString() const {
  if (!registered()) return "unregistered";
  std::string text =
      absl::StrCat(registration_.DebugString(), "owner ", ownership_.owner, " generation ", generation_.value(),
                   " mode ", static_cast<int>(mode_), " paused ", paused_, " finished ", finished_, " step ",
                   last_step_, " lr ", Number(last_learning_rate_), " still ", last_zero_lr_prefix_, " by script ",
                   frozen_by_script_, " readings ", readings_, " epoch ", epoch_, " base plan ", base_plan_.value(),
                   " prefix ", base_prefix_, " decided ", decided_prefix(), "\n");
  for (const v1::Plan& plan : plans_) absl::StrAppend(&text, "plan ", plan.ShortDebugString(), "\n");
  for (const policy::Decision& decision : pending_) {
    absl::StrAppend(&text, "pending step ", decision.step, " prefix ", decision.frozen_prefix, "\n");
  }
  const policy::PolicyStatus status = policy_->status();
  absl::StrAppend(&text, "losses reported ", losses_reported_, " bootstrapping ", status.bootstrapping, " wants loss ",
                  policy_->wants_loss(), " blocked ", status.blocked, "\n");
  for (const policy::ModuleStatus& module : status.modules) {
    absl::StrAppend(&text, "module ", Number(module.plasticity), " ", Number(module.slope), " ",
                    Number(module.threshold), " ", module.consecutive, " ", module.readings);
    if (module.snr) {
      absl::StrAppend(&text, " SNR ", Number(module.snr->value), " ", Number(module.snr->lower), " ",
                      Number(module.snr->upper));
    }
    absl::StrAppend(&text, "\n");
  }
  for (const Observed& observed : observations_) {
    absl::StrAppend(&text, observed.seen ? "seen " : "unseen ",
                    ObservationToProto(observed.observation).ShortDebugString());
    if (observed.loss_is_finite) absl::StrAppend(&text, *observed.loss_is_finite ? " finite" : " not finite", " loss");
    absl::StrAppend(&text, "\n");
  }
  for (size_t i = 0; i < decisions_.size(); ++i) {
    absl::StrAppend(&text, "after ", decision_after_[i], ": ", decisions_[i].DebugString());
  }
  return text;
}

}  // namespace egeria::controller

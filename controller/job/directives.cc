#include "controller/job/directives.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace egeria::controller {
namespace {

constexpr size_t kMaxPlansPerDirective = 64;

// OK if the reference can run this module for the subject; else the reason.
absl::Status CheckUsable(const Job& job, int module, const StandingRequests::Subject& subject) {
  EGERIA_RETURN_IF_ERROR(job.live.graphs.module_status[static_cast<size_t>(module)]);
  if (subject.local || !job.live.graphs.IsLocal(module)) return absl::OkStatus();
  return NamedError(absl::StatusCode::kFailedPrecondition, "LOCAL_REFERENCE",
                    "its worker holds the reference, which no prefix of the controller's can use");
}

// The subject of the readings that the policy wants. It is empty where a module cannot be evaluated, and `blocked` gets
// the reason then.
std::optional<StandingRequests::Subject> SubjectOf(const Job& job, const policy::Monitoring& monitoring,
                                                   ReferenceScope scope, std::string* blocked) {
  StandingRequests::Subject subject{monitoring, monitoring.module, job.state.epoch(), job.state.generation().value(),
                                    job.live.graphs.version};
  subject.local = job.live.graphs.IsLocal(monitoring.module);
  // A worker evaluates only the one module; the prefix before it is frozen and the same for both models.
  if (scope == ReferenceScope::kPrefix && !subject.local) subject.first_module = 0;
  for (int i = subject.first_module; i <= monitoring.module; ++i) {
    const absl::Status usable = CheckUsable(job, i, subject);
    if (usable.ok()) continue;
    *blocked = absl::StrCat("module ", i, " ('", job.state.registration().modules(i).name(),
                            "') cannot be evaluated: ", usable.message());
    return std::nullopt;
  }
  return subject;
}

// Returns an upper bound of the time that evaluating the reference has taken from the training. It counts as if the
// training could have used all cores of the node itself, and is 0 where it has cores of its own.
double SecondsOfReference(const Job& job, const JobManagerOptions& options) {
  if (!options.SharesCores(job.state.registration())) return 0;
  double seconds = 0;
  for (const auto& [backend, compute] : job.live.totals.reference_seconds) seconds += compute;
  return seconds / options.cores;
}

// Returns the name in brackets that a reason begins with. The numbers behind it change.
std::string NameIn(const std::string& reason) { return reason.substr(0, reason.find(']')); }

}  // namespace

void RefreshRequests(Job& job, const JobManagerOptions& options, Effects& effects) {
  LiveJob& live = job.live;
  std::optional<StandingRequests::Subject> subject;
  std::string blocked;
  const auto monitoring = job.state.policy().monitoring();
  if (monitoring && live.graphs.known && !job.state.finished()) {
    subject = SubjectOf(job, *monitoring, options.scope, &blocked);
    if (!blocked.empty() && blocked != live.blocked) {
      LogWarning("job ", job.id.text(), ": nothing more can freeze: ", blocked);
    }
  }
  live.blocked = blocked;
  const std::string by_policy = job.state.blocked();
  if (!by_policy.empty() && NameIn(by_policy) != NameIn(live.blocked_by_policy)) {
    LogInfo("job ", job.id.text(), ": nothing freezes: ", by_policy);
  }
  live.blocked_by_policy = by_policy;
  const std::string advice = job.state.policy().advice();
  if (!advice.empty() && advice != live.advice) LogInfo("job ", job.id.text(), ": advice: ", advice);
  live.advice = advice;
  const bool samples_changed = live.requests.Update(subject, options.clock());
  // A policy that sees no gradients would never end a probe that it began.
  const bool measures = !job.state.finished() && !job.state.paused() && job.state.loss_is_finite();
  const auto gradients = measures ? job.state.policy().gradient_monitoring() : std::nullopt;
  const bool gradients_changed = live.gradients.Update(gradients, job.state.generation().value(), options.clock());
  if (samples_changed || gradients_changed) live.ranks.PushDirectives(effects);
}

v1::Directive DirectiveOf(const Job& job, int number, const Rank& rank, const JobManagerOptions& options) {
  v1::Directive directive;
  directive.set_generation(job.state.generation().value());
  directive.set_mode(job.state.mode());
  if (number == job.live.ranks.Sampler()) {
    if (auto sampling = job.live.requests.sampling()) *directive.mutable_sampling() = *sampling;
    if (auto snapshot = job.live.requests.snapshot()) *directive.mutable_snapshot() = *snapshot;
    if (auto gradients = job.live.gradients.request()) *directive.mutable_gradients() = *gradients;
  }
  directive.set_base_plan(job.state.base_plan().value());
  for (v1::Plan& plan : job.state.PlansAbove(rank.watermark, kMaxPlansPerDirective)) {
    *directive.add_plans() = std::move(plan);
  }
  if (number == 0) {
    directive.set_loss_watermark(job.live.filter.LossWatermark(job.state));
    directive.set_reference_seconds(SecondsOfReference(job, options));
    directive.set_blocked(job.live.blocked.empty() ? job.live.blocked_by_policy : job.live.blocked);
    directive.set_advice(job.live.advice);
  }
  return directive;
}

}  // namespace egeria::controller

#include "worker/agent/agent.h"

#include <utility>

#include "common/base/status.h"
#include "common/rpc/address.h"
#include "common/thread/fork_guard.h"
#include "worker/agent/agent_state.h"
#include "worker/agent/controller_link.h"
#include "worker/agent/registration.h"

namespace egeria::worker {
namespace {

// Joins the state, which the training thread talks to, with the link, whose thread talks to the controller. In a forked
// child neither may be touched. Thread-safe.
class GrpcAgent final : public Agent {
 public:
  GrpcAgent(std::shared_ptr<AgentState> state, std::shared_ptr<ControllerLink> link)
      : state_(std::move(state)), link_(std::move(link)) {}

  void ReportStep(const StepReport& report) override { state_.Call(&AgentState::ReportStep, report); }
  std::optional<SamplingRequest> sampling() const override { return state_.Call(&AgentState::sampling); }
  std::optional<SnapshotRequest> snapshot() const override { return state_.Call(&AgentState::snapshot); }
  std::optional<GradientRequest> gradients() const override { return state_.Call(&AgentState::gradients); }
  PlanId watermark() const override { return state_.Call(&AgentState::watermark); }
  std::optional<Plan> plan(PlanId id) const override { return state_.Call(&AgentState::plan, id); }
  bool Offer(Upload upload) override { return state_.Call(&AgentState::Offer, std::move(upload)); }
  AgentCounters counters() const override { return state_.Call(&AgentState::counters); }
  void Stop(bool finished) override { link_.Call(&ControllerLink::Stop, finished); }

 private:
  const ForkGuard<AgentState> state_;
  const ForkGuard<ControllerLink> link_;  // uses the state, so that it is destroyed first
};

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(AgentOptions options, JobDescription job) {
  EGERIA_ASSIGN_OR_RETURN(rpc::Address controller, rpc::ParseAddress(options.controller));
  if (!controller.is_unix() && controller.port == 0) {
    return absl::InvalidArgumentError(absl::StrCat("address '", options.controller, "' has no port to connect to"));
  }
  EGERIA_RETURN_IF_ERROR(rpc::CheckTlsFiles(options.tls));
  EGERIA_ASSIGN_OR_RETURN(v1::RegisterJobRequest registration, MakeRegistration(job));
  const auto wakeup = std::make_shared<Wakeup>();
  auto state = std::make_shared<AgentState>(job, options.queue_bytes, options.queue_samples, wakeup);
  auto link = std::make_shared<ControllerLink>(std::move(controller), std::move(options), job.rank,
                                               std::move(registration), state.get(), wakeup);
  return std::make_unique<GrpcAgent>(std::move(state), std::move(link));
}

}  // namespace egeria::worker

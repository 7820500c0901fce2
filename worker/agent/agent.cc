#include "worker/agent/agent.h"

#include <unistd.h>

#include <utility>

#include "common/base/status.h"
#include "common/rpc/address.h"
#include "worker/agent/agent_state.h"
#include "worker/agent/controller_link.h"
#include "worker/agent/registration.h"

namespace egeria::worker {
namespace {

// The guard against forks around the state and the link, which do the work. A forked child (a data loader's
// worker) has copies of the channel and of locks that some thread of the parent may have held: it must touch
// neither, not even to destroy them. Thread-safe.
class GrpcAgent final : public Agent {
 public:
  GrpcAgent(rpc::Address controller, AgentOptions options, const JobDescription& job,
            v1::RegisterJobRequest registration) {
    const auto wakeup = std::make_shared<Wakeup>();
    state_ = std::make_unique<AgentState>(job, options.queue_bytes, options.queue_samples, wakeup);
    link_ = std::make_unique<ControllerLink>(std::move(controller), std::move(options), job.rank,
                                             std::move(registration), state_.get(), wakeup);
  }

  ~GrpcAgent() override {
    if (InChild()) {
      (void)link_.release();
      (void)state_.release();
    }
  }

  void ReportStep(const StepReport& report) override {
    if (!InChild()) state_->ReportStep(report);
  }
  std::optional<SamplingRequest> sampling() const override { return InChild() ? std::nullopt : state_->sampling(); }
  std::optional<SnapshotRequest> snapshot() const override { return InChild() ? std::nullopt : state_->snapshot(); }
  std::optional<GradientRequest> gradients() const override { return InChild() ? std::nullopt : state_->gradients(); }
  PlanId watermark() const override { return InChild() ? PlanId() : state_->watermark(); }
  std::optional<Plan> plan(PlanId id) const override { return InChild() ? std::nullopt : state_->plan(id); }
  bool OfferSample(Sample sample) override { return !InChild() && state_->OfferSample(std::move(sample)); }
  bool OfferReading(const Reading& reading) override { return !InChild() && state_->OfferReading(reading); }
  bool OfferGradients(GradientReading reading) override {
    return !InChild() && state_->OfferGradients(std::move(reading));
  }
  bool OfferSnapshot(Snapshot snapshot) override { return !InChild() && state_->OfferSnapshot(std::move(snapshot)); }
  AgentCounters counters() const override { return InChild() ? AgentCounters() : state_->counters(); }
  void Stop(bool finished) override {
    if (!InChild()) link_->Stop(finished);
  }

 private:
  bool InChild() const { return getpid() != pid_; }

  const pid_t pid_ = getpid();
  std::unique_ptr<AgentState> state_;
  std::unique_ptr<ControllerLink> link_;  // uses state_
};

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(AgentOptions options, JobDescription job) {
  EGERIA_ASSIGN_OR_RETURN(rpc::Address controller, rpc::ParseAddress(options.controller));
  if (!controller.is_unix() && controller.port == 0) {
    return absl::InvalidArgumentError(absl::StrCat("address '", options.controller, "' has no port to connect to"));
  }
  EGERIA_RETURN_IF_ERROR(rpc::CheckTlsFiles(options.tls));
  EGERIA_ASSIGN_OR_RETURN(v1::RegisterJobRequest registration, MakeRegistration(job));
  return std::make_unique<GrpcAgent>(std::move(controller), std::move(options), job, std::move(registration));
}

}  // namespace egeria::worker

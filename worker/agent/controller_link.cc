#include "worker/agent/controller_link.h"

#include <algorithm>
#include <random>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/credentials.h"
#include "common/rpc/grpc_status.h"
#include "common/thread/thread.h"
#include "worker/agent/register_call.h"
#include "worker/agent/retry.h"

namespace egeria::worker {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kStopTime(2);
constexpr std::chrono::seconds kRegisterTime(10);
constexpr int kSlowly = 10;
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(20);  // grows with each attempt

uint64_t RandomIncarnation() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

std::chrono::nanoseconds HeartbeatInterval(const v1::RegisterJobResponse& response, absl::Duration otherwise) {
  absl::Duration interval = otherwise;
  if (response.has_heartbeat_interval()) {
    interval = absl::Seconds(response.heartbeat_interval().seconds()) +
               absl::Nanoseconds(response.heartbeat_interval().nanos());
  }
  return absl::ToChronoNanoseconds(std::clamp(interval, absl::Milliseconds(20), absl::Seconds(60)));
}

}  // namespace

ControllerLink::ControllerLink(rpc::Address controller, AgentOptions options, int rank,
                               v1::RegisterJobRequest registration, AgentState* state, std::shared_ptr<Wakeup> wakeup)
    : controller_(std::move(controller)),
      options_(std::move(options)),
      state_(state),
      wakeup_(std::move(wakeup)),
      registration_(std::move(registration)) {
  open_.set_job_id(registration_.job_id());
  open_.set_secret(registration_.secret());
  open_.set_generation(registration_.generation());
  open_.set_rank(rank);
  open_.set_incarnation(RandomIncarnation());
  thread_ = StartThread("egeria-agent", [this] { Run(); });
}

ControllerLink::~ControllerLink() { Stop(false); }

void ControllerLink::Stop(bool finished) {
  std::call_once(joined_, [&] {
    {
      const MutexLock lock(&mutex_);
      stop_ = StopRequest{finished, steady_clock::now() + kStopTime};
    }
    wakeup_->Notify();
    thread_.join();
  });
}

std::optional<StopRequest> ControllerLink::stop_request() const {
  const MutexLock lock(&mutex_);
  return stop_;
}

void ControllerLink::Run() {
  for (;;) {
    // A stop that comes while the controller is away still makes one attempt, to say goodbye.
    const bool last = stop_request().has_value();
    const absl::Status status = ConnectOnce();
    if (last || status.ok()) break;
    const std::optional<std::chrono::nanoseconds> wait = Backoff(status);
    if (!wait.has_value()) {
      state_->GiveUp();
      break;
    }
    SleepUntil(steady_clock::now() + *wait);
  }
  stub_.reset();
}

absl::Status ControllerLink::ConnectOnce() {
  abandoned_.Sweep();
  // Each attempt has a connection of its own, whose other end and certificates are looked at anew.
  EGERIA_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, rpc::MakeChannel(controller_, options_.tls));
  stub_ = v1::Controller::NewStub(channel);
  const absl::StatusOr<v1::RegisterJobResponse> registered = Register();
  if (!registered.ok()) return rpc::ExplainRefusal(registered.status(), controller_, options_.tls);
  const v1::RegisterJobResponse& response = *registered;
  if (registration_.start_id() != 0) TakeGeneration(response.generation());
  registration_.set_journal_epoch(std::max(registration_.journal_epoch(), response.journal_epoch()));
  if (!response.secret().empty()) {
    registration_.set_secret(response.secret());
    open_.set_secret(response.secret());
  }
  for (const auto& error : response.module_errors()) {
    // A worker that sends no graph has said itself why.
    const bool is_news = error.module() >= 0 && error.module() < registration_.modules_size() &&
                         registration_.modules(error.module()).has_graph();
    if (is_news && !answered_before_ && open_.rank() == 0) {  // once a job, not once a rank
      LogWarning("Layer module ", error.module(),
                 " cannot be evaluated by the controller and will not freeze: ", error.reason());
    }
  }
  const std::chrono::nanoseconds interval = HeartbeatInterval(response, options_.heartbeat_interval);
  StreamSession session(stub_.get(), state_, wakeup_,
                        {.open = open_,
                         .heartbeat_interval = interval,
                         .silence_limit = std::max(absl::ToChronoNanoseconds(options_.silence_limit), 3 * interval),
                         .next_upload_id = &next_upload_id_,
                         .stop_request = [this] { return stop_request(); },
                         .on_first_directive = [this] { OnAnswer(); }});
  absl::Status status = session.Run();
  if (std::unique_ptr<StreamCall> unended = session.TakeUnended()) {
    abandoned_.Keep(std::move(unended));
  }
  if (status.ok() && !stop_request().has_value()) {
    return absl::UnavailableError("the controller has ended the stream");
  }
  return status;
}

void ControllerLink::TakeGeneration(int64_t generation) {
  registration_.set_generation(generation);  // a controller that has lost its journal goes on from there
  open_.set_generation(generation);
  state_->TakeGeneration(Generation(generation));
}

absl::StatusOr<v1::RegisterJobResponse> ControllerLink::Register() {
  state_->FillProgress(&registration_);
  auto call = std::make_unique<RegisterCall>(stub_.get(), registration_, kRegisterTime, wakeup_);
  SteadyTime abandon_at = steady_clock::now() + kRegisterTime + kCancelTime;
  bool cancelled = false;
  for (;;) {
    if (auto result = call->result()) return *std::move(result);
    const SteadyTime now = steady_clock::now();
    if (now >= abandon_at) {
      abandoned_.Keep(std::move(call));
      return absl::DeadlineExceededError("no answer to the registration");
    }
    SteadyTime look = std::min(abandon_at, now + std::chrono::seconds(1));
    if (const auto stop = stop_request(); stop.has_value() && !cancelled) {
      look = std::min(look, stop->deadline);
      if (now >= stop->deadline) {
        call->Cancel();
        cancelled = true;
        abandon_at = now + kCancelTime;
        continue;
      }
    }
    wakeup_->WaitUntil(look);
  }
}

void ControllerLink::SleepUntil(SteadyTime deadline) {
  while (steady_clock::now() < deadline && !stop_request().has_value()) wakeup_->WaitUntil(deadline);
}

std::optional<std::chrono::nanoseconds> ControllerLink::Backoff(const absl::Status& failure) {
  const Retry retry = RetryAfter(failure);
  const std::string where = controller_.ToString();
  if (retry == Retry::kNever) {
    LogError("The controller at ", where, " refuses this job: ", failure.message(),
             ". Training goes on without it, nothing more is frozen or unfrozen; ", Advice(failure), ".");
    return std::nullopt;
  }
  // One line for each kind of trouble, however often it comes back before the controller answers.
  const bool news = last_logged_.ok() || rpc::ErrorName(last_logged_) != rpc::ErrorName(failure);
  const bool is_away = absl::IsUnavailable(failure) && rpc::ErrorName(failure).empty();
  const bool quiet = options_.starts_with_job && is_away;
  if (news && !quiet) {
    LogWarning("No connection to the controller at ", where, ": ", failure.message(), ". Training goes on; ",
               Advice(failure), ".");
    last_logged_ = failure;
  }
  if (quiet && !answered_before_) {
    return absl::ToChronoNanoseconds(std::min(options_.reconnect_backoff, ++attempts_ * kFirstBackoff));
  }
  static thread_local std::minstd_rand random{std::random_device{}()};
  const double jitter = std::uniform_real_distribution<double>(0.8, 1.2)(random);
  return absl::ToChronoNanoseconds(options_.reconnect_backoff * (retry == Retry::kSlowly ? kSlowly : 1) * jitter);
}

void ControllerLink::OnAnswer() {
  if (!last_logged_.ok() && answered_before_) {
    LogInfo("The controller at ", controller_.ToString(), " is back");
  } else if (!answered_before_ && (open_.rank() == 0 || !last_logged_.ok())) {  // once a job, not once a rank
    LogInfo("Connected to the controller at ", controller_.ToString());
  }
  answered_before_ = true;
  last_logged_ = absl::OkStatus();
}

}  // namespace egeria::worker

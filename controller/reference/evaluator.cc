#include "controller/reference/evaluator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/base/log.h"
#include "common/base/program_path.h"
#include "common/base/status.h"
#include "common/reference/wire_checks.h"
#include "common/thread/mutex.h"
#include "common/thread/thread.h"
#include "controller/reference/engine_contents.h"
#include "controller/reference/engine_process.h"
#include "controller/reference/load_gate.h"
#include "controller/reference/reference_table.h"
#include "controller/reference/sample_queue.h"
#include "controller/reference/shared_memory.h"
#include "controller/reference/thread_priority.h"

namespace egeria::reference {
namespace {

// Requests that the engine's process has at a time: one that it works at, and the next, so that it need not wait.
constexpr size_t kMaxUnderWay = 2;
// A sample is tried so often before its graph is refused. A graph of which the process has died is tried once more in a
// new one, since another graph may have spoilt the memory of the first; so often at most can others have killed it.
constexpr int kMaxCrashes = 2;
constexpr int kMaxLosses = 3;
constexpr absl::Duration kFirstBackoff = absl::Seconds(1), kLastBackoff = absl::Minutes(1);

// A request that the engine's process has, or is to get.
struct UnderWay {
  std::optional<SampleQueue::Next> next;  // empty where graphs are only to be forgotten
  std::vector<std::shared_ptr<Snapshot>> replaced;
  bool sent = false;
  int crashes = 0, losses = 0;
};

size_t TotalBytes(const std::vector<WireTensor>& tensors) {
  size_t bytes = 0;
  for (const WireTensor& tensor : tensors) bytes += tensor.size();
  return bytes;
}

// The reading, as far as the reply can be believed.
absl::StatusOr<Evaluation> EvaluationOf(const engine::v1::Reply& reply, const std::vector<std::string>& backends) {
  if (reply.code() != 0) {
    const bool known = reply.code() > 0 && reply.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
    std::string message = reply.message().substr(0, 1024);
    std::replace_if(message.begin(), message.end(), [](unsigned char c) { return !absl::ascii_isprint(c); }, '?');
    return absl::Status(known ? static_cast<absl::StatusCode>(reply.code()) : absl::StatusCode::kInternal, message);
  }
  const auto is_time = [](double seconds) { return std::isfinite(seconds) && seconds >= 0 && seconds < 1e6; };
  const bool backend_known =
      reply.backend() == "aten" || std::find(backends.begin(), backends.end(), reply.backend()) != backends.end();
  if (!std::isfinite(reply.plasticity()) || !is_time(reply.compute_seconds()) || !backend_known) {
    return NamedError(absl::StatusCode::kInternal, "REFERENCE_FAILED", "the reading makes no sense");
  }
  return Evaluation{
      .plasticity = reply.plasticity(), .backend = reply.backend(), .compute = absl::Seconds(reply.compute_seconds())};
}

EngineProcess::Options ProcessOptions(const EvaluatorOptions& options, std::shared_ptr<SharedMemory> memory,
                                      std::function<bool()> stopping) {
  EngineProcess::Options process;
  process.program = options.program;
  process.setup.set_threads(options.threads);
  for (const std::string& backend : options.backends) process.setup.add_backends(backend);
  process.setup.set_memory_bytes(options.memory_bytes);
  process.setup.set_packed_bytes(2 * options.max_weight_bytes);  // each module for more than one backend
  // A run that sees for itself that it takes too long need not be killed.
  process.setup.set_seconds_a_run(0.8 * absl::ToDoubleSeconds(options.deadline));
  process.deadline = options.deadline;
  process.memory = std::move(memory);
  process.stopping = std::move(stopping);
  return process;
}

class EvaluatorImpl final : public Evaluator {
 public:
  EvaluatorImpl(EvaluatorOptions options, std::shared_ptr<SharedMemory> memory, bool idle_available, Callback on_result)
      : options_(std::move(options)),
        memory_(std::move(memory)),
        idle_available_(idle_available),
        on_result_(std::move(on_result)),
        engine_(ProcessOptions(options_, memory_, [this] { return stopping(); })),
        contents_(memory_.get()),
        load_meter_("/proc/stat", [this] { return engine_.CpuSeconds(); }),
        references_(options_.max_weight_bytes),
        queue_(options_.max_samples_per_job, options_.max_queue_bytes, idle_available) {}
  ~EvaluatorImpl() override { Stop(); }

  absl::Status StartThreadOfItsOwn() {
    thread_ = StartThread("evaluator", [this] {
      absl::Status status;
      // The engine's process inherits it.
      if (!PinToCpus(options_.cpus)) status = absl::InvalidArgumentError("the evaluator cannot be bound to its CPUs");
      const bool ok = status.ok();
      {
        const MutexLock lock(&mutex_);
        started_ = std::move(status);
      }
      changed_.NotifyAll();
      if (ok) Loop();
    });
    const MutexLock lock(&mutex_);
    while (!started_.has_value()) changed_.Wait(&mutex_);
    return *started_;
  }

  std::vector<absl::Status> SetJob(const JobId& job, const std::vector<std::optional<graph::ModuleGraph>>& modules,
                                   const JobTraits& traits) override;
  void RemoveJob(const JobId& job) override;
  absl::Status SubmitSnapshot(const JobId& job, ModuleIndex module, int64_t version, int64_t step,
                              std::vector<WireTensor> weights) override;
  absl::Status SubmitSample(const JobId& job, SubmittedSample sample) override;
  void ReportStep(const JobId& job, int64_t step) override;
  EvaluatorCounters counters() const override;
  absl::Status health() const override {
    const MutexLock lock(&mutex_);
    return engine_status_;
  }

  void Stop() override {
    std::call_once(stopped_, [this] {
      {
        const MutexLock lock(&mutex_);
        stopping_ = true;
      }
      changed_.NotifyAll();
      if (thread_.joinable()) thread_.join();
    });
  }

 private:
  struct Running {
    JobId job;
    int64_t step = 0;
    JobTraits traits;
  };

  bool stopping() const {
    const MutexLock lock(&mutex_);
    return stopping_;
  }
  // These are the evaluator thread's.
  void Loop();
  bool StartEngine();
  std::optional<SampleQueue::Next> TakeNext(bool wait);
  void SendAll();
  void AttendToOldest();
  void TakeFailure(const absl::Status& why);
  void Finish(absl::StatusOr<Evaluation> evaluation, bool refuse_graph, absl::Duration taken);

  // These are constant after construction.
  const EvaluatorOptions options_;
  const std::shared_ptr<SharedMemory> memory_;
  const bool idle_available_;
  const Callback on_result_;
  std::thread thread_;
  std::once_flag stopped_;

  // The evaluator thread's, but for what EngineProcess says is for any thread.
  EngineProcess engine_;
  EngineContents contents_;
  CpuLoadMeter load_meter_;
  std::deque<UnderWay> under_way_;
  absl::Duration backoff_ = kFirstBackoff;

  const std::shared_ptr<ForgottenGraphs> forgotten_ = std::make_shared<ForgottenGraphs>();
  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<absl::Status> started_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  ReferenceTable references_ ABSL_GUARDED_BY(mutex_);
  SampleQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<Running> running_ ABSL_GUARDED_BY(mutex_);  // a sample that is evaluated at idle priority
  absl::Status engine_status_ ABSL_GUARDED_BY(mutex_);
  int64_t evaluated_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t snapshots_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::vector<absl::Status> EvaluatorImpl::SetJob(const JobId& job,
                                                const std::vector<std::optional<graph::ModuleGraph>>& modules,
                                                const JobTraits& traits) {
  JobReferences before;  // destroyed after the lock
  int64_t first_id = 0;
  {
    const MutexLock lock(&mutex_);
    before = references_.Get(job);
    first_id = references_.NextIds(modules.size());
  }
  JobReferences built = ReferenceTable::Build(before, modules, first_id, forgotten_);
  std::vector<absl::Status> statuses;
  for (const ReferenceModuleState& module : built.modules) statuses.push_back(module.status);
  const MutexLock lock(&mutex_);
  before = references_.Set(job, std::move(built));
  queue_.SetJob(job, traits);
  return statuses;
}

void EvaluatorImpl::RemoveJob(const JobId& job) {
  {
    std::vector<QueuedSample> dropped;  // both are destroyed after the lock
    JobReferences removed;
    const MutexLock lock(&mutex_);
    dropped = queue_.RemoveJob(job);
    removed = references_.Remove(job);
  }
  changed_.NotifyOne();  // the engine's process is to forget the graphs
}

absl::Status EvaluatorImpl::SubmitSnapshot(const JobId& job, ModuleIndex module, int64_t version, int64_t step,
                                           std::vector<WireTensor> weights) {
  std::shared_ptr<ReferenceGraph> target;
  std::vector<std::shared_ptr<Snapshot>> dropped;  // destroyed after the lock
  auto snapshot = std::make_shared<Snapshot>();
  {
    const MutexLock lock(&mutex_);
    EGERIA_ASSIGN_OR_RETURN(const ReferenceModuleState* state, references_.Find(job, module));
    target = state->graph;
    snapshot->id = references_.NextIds(1);
  }
  EGERIA_ASSIGN_OR_RETURN(weights, MatchWeights(target->graph.weights, std::move(weights)));
  snapshot->bytes = TotalBytes(weights);
  for (WireTensor& weight : weights) {
    EGERIA_ASSIGN_OR_RETURN(WireTensor shared, memory_->Copy(weight, SharedMemory::End::kBack));
    snapshot->weights.push_back(std::move(shared));
    weight = {};
  }
  const MutexLock lock(&mutex_);
  EGERIA_ASSIGN_OR_RETURN(ReferenceModuleState * state, references_.Find(job, module));
  if (state->graph != target) {
    return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_MODULE", "the job was registered anew meanwhile");
  }
  EGERIA_RETURN_IF_ERROR(references_.MakeRoom(job, module, snapshot->bytes, &dropped));
  dropped.push_back(std::exchange(state->latest, std::move(snapshot)));
  ++snapshots_;
  return absl::OkStatus();
}

absl::Status EvaluatorImpl::SubmitSample(const JobId& job, SubmittedSample sample) {
  std::shared_ptr<SampleContext> context;
  {
    const MutexLock lock(&mutex_);
    EGERIA_ASSIGN_OR_RETURN(context, references_.ContextFor(job, sample.first_module, sample.module));
  }
  EGERIA_RETURN_IF_ERROR(CheckSample(context->graphs.front()->graph.inputs, sample.tensors, sample.metric));
  const size_t bytes = TotalBytes(sample.tensors);
  for (WireTensor& tensor : sample.tensors) {
    EGERIA_ASSIGN_OR_RETURN(tensor, memory_->Copy(tensor, SharedMemory::End::kFront));
  }
  QueuedSample queued{std::move(sample), job, std::move(context)};
  std::vector<QueuedSample> dropped;  // destroyed after the lock
  const MutexLock lock(&mutex_);
  EGERIA_RETURN_IF_ERROR(queue_.Push(std::move(queued), bytes, &dropped));
  changed_.NotifyOne();
  return absl::OkStatus();
}

void EvaluatorImpl::ReportStep(const JobId& job, int64_t step) {
  bool escalate = false;
  {
    const MutexLock lock(&mutex_);
    queue_.ReportStep(job, step);
    if (running_.has_value() && running_->job == job) {
      escalate = SampleQueue::IsDue(running_->traits, step - running_->step);
    }
    if (!queue_.empty()) changed_.NotifyOne();
  }
  // If the sample has just ended and another begun, the other runs at normal priority, once.
  if (escalate) engine_.SetIdle(false);
}

EvaluatorCounters EvaluatorImpl::counters() const {
  EvaluatorCounters counters;
  counters.engine_ends = engine_.Ends();
  counters.engine_resident_bytes = engine_.ResidentBytes();
  counters.engine_cpu_seconds = engine_.CpuSeconds();
  const MutexLock lock(&mutex_);
  counters.evaluated = evaluated_;
  counters.dropped_queue_full = queue_.dropped_full();
  counters.dropped_late = queue_.dropped_late();
  counters.snapshots = snapshots_;
  counters.queued_bytes = queue_.bytes();
  counters.weight_bytes = references_.weight_bytes();
  return counters;
}

void EvaluatorImpl::Loop() {
  while (true) {
    while (under_way_.size() < kMaxUnderWay) {
      auto next = TakeNext(/*wait=*/under_way_.empty());
      if (!next) break;
      under_way_.push_back({.next = std::move(next)});
    }
    if (stopping()) return;
    if (under_way_.empty()) {  // there is something to forget
      if (!engine_.running()) {
        forgotten_->Take();
        continue;
      }
      under_way_.push_back({});
    }
    if (!StartEngine()) continue;
    SendAll();
    AttendToOldest();
  }
}

// False where it does not start: tries again at the next call, and waits before it returns.
bool EvaluatorImpl::StartEngine() {
  const int64_t starts = engine_.starts();
  const absl::Status status = engine_.Start();
  if (engine_.starts() > starts) {
    contents_.Clear();
    for (UnderWay& request : under_way_) request.sent = false;
  }
  if (stopping()) return false;
  {
    const MutexLock lock(&mutex_);
    engine_status_ = status;
  }
  if (status.ok()) {
    backoff_ = kFirstBackoff;
    return true;
  }
  LogError("the reference engine does not start, which is tried again in ", absl::FormatDuration(backoff_), ": ",
           status.message());
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(backoff_);
  backoff_ = std::min(2 * backoff_, kLastBackoff);
  const MutexLock lock(&mutex_);
  while (!stopping_ && changed_.WaitUntil(&mutex_, until)) {
  }
  return false;
}

// The next sample that may run. Without one it returns nothing: at once, or with `wait` when there is something to
// forget or the evaluator stops.
std::optional<SampleQueue::Next> EvaluatorImpl::TakeNext(bool wait) {
  while (true) {
    {
      const MutexLock lock(&mutex_);
      while (wait && !stopping_ && queue_.empty() && forgotten_->empty()) changed_.Wait(&mutex_);
      if (stopping_ || queue_.empty()) return std::nullopt;
    }
    const double load = options_.cpu_load == nullptr ? load_meter_.Read() : options_.cpu_load();
    std::vector<QueuedSample> dropped;  // destroyed after the lock
    const MutexLock lock(&mutex_);
    std::optional<SampleQueue::Next> next = queue_.Pop(load < options_.max_cpu_load, &dropped);
    if (next.has_value() || !wait || stopping_) return next;
    if (!queue_.empty()) {
      changed_.WaitUntil(&mutex_, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.load_poll));
    }
  }
}

void EvaluatorImpl::SendAll() {
  for (UnderWay& request : under_way_) {
    if (request.sent) continue;
    static const SubmittedSample kNone;
    const auto* context = request.next ? static_cast<SampleContext*>(request.next->sample.context.get()) : nullptr;
    EngineContents::Request made =
        contents_.RequestFor(context, request.next ? request.next->sample : kNone, forgotten_->Take());
    engine_.Send(made.message);
    request.replaced = std::move(made.replaced);
    request.sent = true;
  }
}

// Waits for the reply to the oldest request.
void EvaluatorImpl::AttendToOldest() {
  const auto& next = under_way_.front().next;
  const bool idle = next && next->traits.shares_cpu && !next->due && idle_available_;
  if (idle) {
    const MutexLock lock(&mutex_);
    running_ = Running{next->sample.job, next->sample.step, next->traits};
  }
  engine_.SetIdle(idle);  // never while holding a lock that others wait for
  const double before = engine_.CpuSeconds();
  const absl::StatusOr<engine::v1::Reply> reply = engine_.Receive();
  const absl::Duration taken = absl::Seconds(engine_.CpuSeconds() - before);
  {
    const MutexLock lock(&mutex_);
    running_.reset();
    if (stopping_) return;
  }
  if (!reply.ok()) return TakeFailure(reply.status());
  absl::StatusOr<Evaluation> evaluation = EvaluationOf(*reply, options_.backends);
  // A failure that takes long is not paid for again.
  const bool refused = !evaluation.ok() && (reply->graph_refused() || taken > options_.deadline / 2);
  Finish(std::move(evaluation), refused, taken);
}

// The process has ended while it had the oldest request.
void EvaluatorImpl::TakeFailure(const absl::Status& why) {
  UnderWay& request = under_way_.front();
  if (absl::IsInternal(why)) ++request.crashes;
  if (absl::IsUnavailable(why)) ++request.losses;
  const bool again =
      absl::IsDeadlineExceeded(why) ? false : request.crashes < kMaxCrashes && request.losses < kMaxLosses;
  if (request.next) {
    const QueuedSample& sample = request.next->sample;
    LogWarning("the reference engine has ended while it evaluated job ", sample.job.text(), ", module ",
               sample.module.value(), ", step ", sample.step, ": ", why.message(),
               again ? "; this is tried again in a new process" : "");
  }
  if (!again) Finish(why, /*refuse_graph=*/true, options_.deadline);
}

void EvaluatorImpl::Finish(absl::StatusOr<Evaluation> evaluation, bool refuse_graph, absl::Duration taken) {
  UnderWay request = std::move(under_way_.front());
  under_way_.pop_front();
  if (!request.next) return;
  QueuedSample& sample = request.next->sample;
  Result result{sample.job, sample.module, sample.step, sample.request_version, sample.tag, std::move(evaluation)};
  std::shared_ptr<Snapshot> dropped;  // destroyed after the lock
  {
    const MutexLock lock(&mutex_);
    const auto* context = static_cast<SampleContext*>(sample.context.get());
    result.graph_refused = refuse_graph && references_.Refuse(sample.job, sample.module, context->graphs.back().get(),
                                                              result.evaluation.status(), &dropped);
    queue_.Charge(sample.job, taken);
    if (result.evaluation.ok()) ++evaluated_;
    sample.lease.Release();
  }
  if (!result.evaluation.ok()) {
    LogWarning("job ", sample.job.text(), ", module ", sample.module.value(), ", step ", sample.step, ": ",
               std::string(result.evaluation.status().message()),
               result.graph_refused ? "; this module's graph is not evaluated again" : "");
  }
  if (on_result_) on_result_(result);
}

absl::Status CheckOptions(const EvaluatorOptions& options) {
  if (options.threads < 1 || options.threads > 1024) return absl::InvalidArgumentError("threads must be 1..1024");
  if (!(options.max_cpu_load > 0)) return absl::InvalidArgumentError("max_cpu_load must be over 0");
  if (options.load_poll <= absl::ZeroDuration()) return absl::InvalidArgumentError("load_poll must be over 0");
  if (options.deadline <= absl::ZeroDuration()) return absl::InvalidArgumentError("deadline must be over 0");
  for (const std::string& backend : options.backends) {
    if (backend != "int8" && backend != "bf16" && backend != "prepacked" && backend != "aten") {
      return absl::InvalidArgumentError(absl::StrCat("'", backend, "' is no reference backend"));
    }
  }
  if (IsProgram(options.program)) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(options.program, ", which evaluates reference models, is missing: install it with this program"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Evaluator>> Evaluator::Start(EvaluatorOptions options, Callback on_result) {
  if (options.program.empty()) options.program = OwnFolder() + "/egeria-reference";
  EGERIA_RETURN_IF_ERROR(CheckOptions(options));
  // Old snapshots stay for a while beside new ones, and gaps between tensors cost nothing but addresses.
  EGERIA_ASSIGN_OR_RETURN(auto memory, SharedMemory::Create(4 * (options.max_weight_bytes + options.max_queue_bytes)));
  const bool idle_available = CanLeaveIdlePriority();
  if (!idle_available) {
    LogInfo(
        "the evaluator may not leave idle priority (CAP_SYS_NICE, or LimitNICE=+0): samples of jobs that share its "
        "CPUs "
        "wait for the load gate or their deadline instead");
  }
  auto evaluator =
      std::make_unique<EvaluatorImpl>(std::move(options), std::move(memory), idle_available, std::move(on_result));
  EGERIA_RETURN_IF_ERROR(evaluator->StartThreadOfItsOwn());
  return evaluator;
}

}  // namespace egeria::reference

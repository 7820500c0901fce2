#include "controller/reference/evaluator.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/reference/reference_chain.h"
#include "common/reference/reference_module.h"
#include "common/reference/tensor_bridge.h"
#include "common/reference/wire_checks.h"
#include "common/thread/mutex.h"
#include "common/thread/thread.h"
#include "controller/reference/load_gate.h"
#include "controller/reference/sample_queue.h"
#include "controller/reference/thread_priority.h"

namespace egeria::reference {
namespace {

// Immutable but for the lease, which the evaluator's thread lets go when the weights are in use.
struct Snapshot {
  std::vector<WireTensor> weights;
  ByteLease lease;
};

// A module, and the snapshot that it holds, which is the evaluator thread's.
struct LoadedModule {
  std::shared_ptr<ReferenceModule> module;
  std::shared_ptr<Snapshot> loaded;
};

// A job's chains, by first and last module. Only the evaluator's thread uses them.
struct JobChains {
  struct Entry {
    std::unique_ptr<ReferenceChain> chain;
    std::vector<std::shared_ptr<Snapshot>> snapshots;  // those that it was calibrated with
  };
  std::map<std::pair<ModuleIndex, ModuleIndex>, Entry> entries;
};

// A queued sample refers to the modules and snapshots of the moment in which it came, so that a newer snapshot
// does not change the meaning of an older sample.
struct SampleContext {
  std::shared_ptr<JobChains> chains;
  std::vector<std::shared_ptr<LoadedModule>> modules;
  std::vector<std::shared_ptr<Snapshot>> snapshots;
};

struct EvaluatedModule {
  absl::Status status;                   // OK, or why it cannot be evaluated
  std::shared_ptr<LoadedModule> module;  // null unless OK
  std::shared_ptr<Snapshot> latest;
};

struct EvaluatedJob {
  std::vector<EvaluatedModule> modules;
  std::shared_ptr<JobChains> chains;
};

size_t TotalBytes(const std::vector<WireTensor>& tensors) {
  size_t bytes = 0;
  for (const WireTensor& tensor : tensors) bytes += tensor.size();
  return bytes;
}

class EvaluatorImpl final : public Evaluator {
 public:
  EvaluatorImpl(EvaluatorOptions options, std::vector<std::unique_ptr<Backend>> backends, bool idle_available,
                Callback on_result)
      : options_(std::move(options)),
        backends_(std::move(backends)),
        idle_available_(idle_available),
        on_result_(std::move(on_result)),
        queue_(options_.max_samples_per_job, options_.max_queue_bytes, idle_available) {}
  ~EvaluatorImpl() override { Stop(); }

  absl::Status StartThreadOfItsOwn() {
    thread_ = StartThread("evaluator", [this] {
      absl::Status status;
      if (!PinToCpus(options_.cpus)) status = absl::InvalidArgumentError("the evaluator cannot be bound to its CPUs");
      at::set_num_threads(options_.threads);
      thread_id_ = CurrentThreadId();
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

  EvaluatorCounters counters() const override {
    const MutexLock lock(&mutex_);
    return {.evaluated = evaluated_,
            .dropped_queue_full = queue_.dropped_full(),
            .dropped_late = queue_.dropped_late(),
            .snapshots = snapshots_,
            .queued_bytes = queue_.bytes()};
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

  void Loop();
  std::optional<SampleQueue::Next> WaitForNext();
  void Run(SampleQueue::Next next);
  absl::StatusOr<Evaluation> Evaluate(const QueuedSample& sample);
  absl::StatusOr<EvaluatedModule*> FindModule(const JobId& job, ModuleIndex module)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // These are constant after construction.
  const EvaluatorOptions options_;
  const std::vector<std::unique_ptr<Backend>> backends_;
  const bool idle_available_;
  const Callback on_result_;
  std::thread thread_;
  std::atomic<pid_t> thread_id_{0};
  std::once_flag stopped_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<absl::Status> started_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<JobId, EvaluatedJob> jobs_ ABSL_GUARDED_BY(mutex_);
  SampleQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<Running> running_ ABSL_GUARDED_BY(mutex_);  // a sample that is evaluated at idle priority
  int64_t evaluated_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t snapshots_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::vector<absl::Status> EvaluatorImpl::SetJob(const JobId& job,
                                                const std::vector<std::optional<graph::ModuleGraph>>& modules,
                                                const JobTraits& traits) {
  EvaluatedJob before;
  {
    const MutexLock lock(&mutex_);
    const auto found = jobs_.find(job);
    if (found != jobs_.end()) before = found->second;
  }
  EvaluatedJob state;
  state.chains = before.modules.size() == modules.size() ? before.chains : nullptr;
  std::vector<absl::Status> statuses;
  for (size_t i = 0; i < modules.size(); ++i) {
    EvaluatedModule module;
    if (!modules[i].has_value()) {
      module.status = NamedError(absl::StatusCode::kFailedPrecondition, "NO_GRAPH", "the worker sent no graph");
    } else if (i < before.modules.size() && before.modules[i].module != nullptr &&
               before.modules[i].module->module->graph() == *modules[i]) {
      module = before.modules[i];
    } else {
      state.chains = nullptr;
      auto made = ReferenceModule::Create(*modules[i]);
      module.status = made.status();
      if (made.ok()) module.module = std::make_shared<LoadedModule>(LoadedModule{*std::move(made), nullptr});
    }
    statuses.push_back(module.status);
    state.modules.push_back(std::move(module));
  }
  if (state.chains == nullptr) state.chains = std::make_shared<JobChains>();
  const MutexLock lock(&mutex_);
  std::swap(jobs_[job], state);
  queue_.SetJob(job, traits);
  return statuses;
}

void EvaluatorImpl::RemoveJob(const JobId& job) {
  std::vector<QueuedSample> dropped;  // destroyed after the lock
  EvaluatedJob state;
  const MutexLock lock(&mutex_);
  dropped = queue_.RemoveJob(job);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  state = std::move(found->second);
  jobs_.erase(found);
}

absl::StatusOr<EvaluatedModule*> EvaluatorImpl::FindModule(const JobId& job, ModuleIndex module) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_JOB", job.text());
  std::vector<EvaluatedModule>& modules = found->second.modules;
  if (module.value() < 0 || module.value() >= static_cast<int64_t>(modules.size())) {
    return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_MODULE", module.value(), " of ", modules.size());
  }
  EvaluatedModule& state = modules[module.value()];
  if (!state.status.ok()) return state.status;
  return &state;
}

absl::Status EvaluatorImpl::SubmitSnapshot(const JobId& job, ModuleIndex module, int64_t version, int64_t step,
                                           std::vector<WireTensor> weights) {
  std::shared_ptr<LoadedModule> target;
  {
    const MutexLock lock(&mutex_);
    EGERIA_ASSIGN_OR_RETURN(const EvaluatedModule* state, FindModule(job, module));
    target = state->module;
  }
  EGERIA_ASSIGN_OR_RETURN(weights, MatchWeights(target->module->weight_specs(), std::move(weights)));
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->weights = std::move(weights);
  const size_t bytes = TotalBytes(snapshot->weights);

  std::shared_ptr<Snapshot> replaced;  // destroyed after the lock
  const MutexLock lock(&mutex_);
  EGERIA_ASSIGN_OR_RETURN(EvaluatedModule * state, FindModule(job, module));
  if (state->module != target) {
    return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_MODULE", "the job was registered anew meanwhile");
  }
  // The snapshot that it replaces goes, unless a sample waits for it.
  const bool unused = state->latest != nullptr && state->latest.use_count() == 1;
  if (!queue_.HasRoomFor(bytes, unused ? state->latest->lease.bytes() : 0)) {
    return NamedError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "a snapshot of ", bytes, " bytes; ",
                      queue_.bytes(), " of ", options_.max_queue_bytes, " are taken");
  }
  snapshot->lease = queue_.Lease(bytes);
  replaced = std::exchange(state->latest, std::move(snapshot));
  ++snapshots_;
  return absl::OkStatus();
}

absl::Status EvaluatorImpl::SubmitSample(const JobId& job, SubmittedSample sample) {
  auto context = std::make_shared<SampleContext>();
  {
    const MutexLock lock(&mutex_);
    EGERIA_RETURN_IF_ERROR(FindModule(job, sample.module).status());
    if (sample.first_module > sample.module) {
      return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_MODULE", "the first module comes after the last");
    }
    for (ModuleIndex i = sample.first_module; i <= sample.module; i = i.next()) {
      EGERIA_ASSIGN_OR_RETURN(const EvaluatedModule* state, FindModule(job, i));
      if (state->latest == nullptr) {
        return NamedError(absl::StatusCode::kFailedPrecondition, "NO_REFERENCE", "module ", i.value(),
                          " has no snapshot yet");
      }
      context->modules.push_back(state->module);
      context->snapshots.push_back(state->latest);
    }
    context->chains = jobs_.at(job).chains;
  }
  EGERIA_RETURN_IF_ERROR(CheckSample(context->modules.front()->module->input_specs(), sample.tensors, sample.metric));
  const size_t bytes = TotalBytes(sample.tensors);
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
  // This thread does it, because the evaluator's own may get no CPU at all. If that one has just ended the sample
  // and begun another, the other runs at normal priority, once.
  if (escalate) SetIdlePriority(thread_id_, false);
}

std::optional<SampleQueue::Next> EvaluatorImpl::WaitForNext() {
  while (true) {
    {
      const MutexLock lock(&mutex_);
      while (!stopping_ && queue_.empty()) changed_.Wait(&mutex_);
      if (stopping_) return std::nullopt;
    }
    const bool gate_open = options_.cpu_load() < options_.max_cpu_load;
    std::vector<QueuedSample> dropped;  // destroyed after the lock
    const MutexLock lock(&mutex_);
    if (stopping_) return std::nullopt;
    std::optional<SampleQueue::Next> next = queue_.Pop(gate_open, &dropped);
    if (next.has_value()) return next;
    if (!queue_.empty()) {
      changed_.WaitUntil(&mutex_, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.load_poll));
    }
  }
}

void EvaluatorImpl::Loop() {
  while (std::optional<SampleQueue::Next> next = WaitForNext()) Run(*std::move(next));
}

void EvaluatorImpl::Run(SampleQueue::Next next) {
  const QueuedSample& sample = next.sample;
  const bool idle = next.traits.shares_cpu && !next.due && idle_available_;
  if (idle) {
    {
      const MutexLock lock(&mutex_);
      running_ = Running{sample.job, sample.step, next.traits};
    }
    SetIdlePriority(thread_id_, true);  // never while holding a lock that others wait for
  }
  Result result{sample.job, sample.module, sample.step, sample.request_version, sample.tag, Evaluate(sample)};
  if (idle) SetIdlePriority(thread_id_, false);
  {
    const MutexLock lock(&mutex_);
    running_.reset();
    if (result.evaluation.ok()) ++evaluated_;
    next.sample.lease.Release();
  }
  if (!result.evaluation.ok()) {
    LogWarning("job ", sample.job.text(), ", module ", sample.module.value(), ", step ", sample.step, ": ",
               std::string(result.evaluation.status().message()));
  }
  if (on_result_) on_result_(result);
}

absl::StatusOr<Evaluation> EvaluatorImpl::Evaluate(const QueuedSample& sample) {
  const absl::Duration start = ThreadCpuTime();
  try {
    const c10::InferenceMode inference;
    auto* context = static_cast<SampleContext*>(sample.context.get());
    JobChains::Entry& entry = context->chains->entries[{sample.first_module, sample.module}];
    if (entry.chain == nullptr || entry.chain->metric() != sample.metric) {
      std::vector<std::shared_ptr<ReferenceModule>> modules;
      for (const auto& loaded : context->modules) modules.push_back(loaded->module);
      entry.chain = std::make_unique<ReferenceChain>(std::move(modules), &backends_, sample.metric);
    }
    for (size_t i = 0; i < context->modules.size(); ++i) {
      if (context->modules[i]->loaded == context->snapshots[i]) continue;
      context->modules[i]->module->SetWeights(context->snapshots[i]->weights);
      context->modules[i]->loaded = context->snapshots[i];
      context->snapshots[i]->lease.Release();
    }
    if (entry.snapshots != context->snapshots) {
      entry.chain->WeightsChanged();
      entry.snapshots = context->snapshots;
    }
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i + 1 < sample.tensors.size(); ++i) inputs.push_back(ToTensor(sample.tensors[i]));
    const WireTensor& bytes = sample.tensors.back();
    std::vector<float> compared(bytes.size() / sizeof(float));
    std::memcpy(compared.data(), bytes.data(), bytes.size());
    EGERIA_ASSIGN_OR_RETURN(const ChainReading reading, entry.chain->Evaluate(inputs, compared, bytes.spec.shape[0]));
    return Evaluation{.plasticity = reading.plasticity,
                      .backend = reading.family,
                      .compute = options_.threads * (ThreadCpuTime() - start)};
  } catch (...) {
    return StatusOfCurrentException("evaluation");
  }
}

absl::Status CheckOptions(const EvaluatorOptions& options) {
  if (options.threads < 1 || options.threads > 1024) return absl::InvalidArgumentError("threads must be 1..1024");
  if (!(options.max_cpu_load > 0)) return absl::InvalidArgumentError("max_cpu_load must be over 0");
  if (options.load_poll <= absl::ZeroDuration()) return absl::InvalidArgumentError("load_poll must be over 0");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Evaluator>> Evaluator::Start(EvaluatorOptions options, Callback on_result) {
  EGERIA_RETURN_IF_ERROR(CheckOptions(options));
  EGERIA_ASSIGN_OR_RETURN(auto backends, MakeBackends(options.backends));
  if (options.cpu_load == nullptr) {
    options.cpu_load = [meter = std::make_shared<CpuLoadMeter>()] { return meter->Read(); };
  }
  const bool idle_available = CanLeaveIdlePriority();
  if (!idle_available) {
    LogInfo(
        "the evaluator may not leave idle priority (CAP_SYS_NICE, or LimitNICE=0): samples of jobs that share its CPUs "
        "wait for the load gate or their deadline instead");
  }
  auto evaluator =
      std::make_unique<EvaluatorImpl>(std::move(options), std::move(backends), idle_available, std::move(on_result));
  EGERIA_RETURN_IF_ERROR(evaluator->StartThreadOfItsOwn());
  return evaluator;
}

}  // namespace egeria::reference

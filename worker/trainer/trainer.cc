#include "worker/trainer/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "ATen/Context.h"
#include "ATen/DeviceAccelerator.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/argmax.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/eq.h"
#include "ATen/ops/tensor.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/monotonic.h"
#include "common/base/status.h"
#include "worker/commit/torch_status.h"
#include "worker/freeze/embedding_prefix.h"
#include "worker/planning/learning_rates.h"
#include "worker/planning/planned_saving.h"
#include "worker/session/session.h"
#include "worker/trainer/batch_loader.h"
#include "worker/trainer/cache_link.h"
#include "worker/trainer/checkpoint.h"
#include "worker/trainer/controller_link.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/data/upcoming_batches.h"
#include "worker/trainer/progress.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/schedule.h"
#include "worker/trainer/step_shares.h"
#include "worker/trainer/stop_signal.h"

namespace egeria::trainer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kEvaluationBatch = 250;
constexpr size_t kBatchesAhead = 8;  // the cache is told of so many

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

struct Score {
  double accuracy = 0;
  double loss = 0;
};

// A run of the program on one rank. It is owned by the main thread.
class Run {
 public:
  Run(const Options& options, const Launch& launch, c10::Device device)
      : options_(options), launch_(launch), device_(device) {}

  absl::Status Prepare();
  absl::StatusOr<RunSummary> Execute();

 private:
  bool leader() const { return launch_.member.rank == 0; }
  int64_t end_step() const {
    return options_.stop_after > 0 ? std::min(options_.stop_after, total_steps_) : total_steps_;
  }

  // The last epoch may be a part of one.
  int64_t epochs() const { return (total_steps_ + sampler_->steps_per_epoch() - 1) / sampler_->steps_per_epoch(); }

  absl::Status LoadData();
  absl::Status MakeReplica();
  absl::Status PlanSteps(const std::optional<Checkpoint>& restored);
  absl::Status StartSession(const std::optional<Checkpoint>& restored);
  absl::StatusOr<std::optional<Checkpoint>> Restore();
  absl::Status SaveCheckpoint();
  std::string Identity() const;
  std::string Mode() const;

  absl::Status Step(Progress* progress);
  void ShowSwitches(Progress* progress);
  absl::StatusOr<Score> Evaluate();
  absl::StatusOr<RunSummary> Summarise(const Score& score, double wall_seconds);

  const Options& options_;
  const Launch& launch_;
  const c10::Device device_;
  Task task_;
  std::optional<Sampler> sampler_;
  std::optional<UpcomingBatches> upcoming_;
  Augmentation augmentation_;
  int64_t total_steps_ = 0;
  double reinvested_saving_ = 0;
  std::vector<double> step_shares_;
  LearningRateOptions rate_;
  worker::LearningRates rates_;  // rates of the steps so far
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<worker::SessionMetrics> metrics_;
  std::unique_ptr<worker::Session> session_;
  int64_t saved_step_ = -1;
  size_t switches_shown_ = 0;
  std::vector<worker::Switch> earlier_switches_;  // switches of the run that was resumed
  std::string cache_job_;                         // the job whose entries the cache has; "": none
  double seconds_ = 0;
  double share_steps_ = 0;    // the sum over steps of the frozen share
  double share_seconds_ = 0;  // the sum over steps of the frozen share times the step's duration
};

absl::Status Run::LoadData() {
  if (options_.task == "digits") {
    EGERIA_ASSIGN_OR_RETURN(task_, LoadDigits(options_.data));
  } else {
    EGERIA_ASSIGN_OR_RETURN(task_, LoadCifar10(options_.data));
    augmentation_ = {4, true, options_.seed};
  }
  Truncate(options_.train_samples, &task_.train);
  Truncate(options_.validation_samples, &task_.validation);
  EGERIA_ASSIGN_OR_RETURN(
      sampler_, Sampler::Make(task_.train.size(), launch_.member.world_size, options_.batch_size, options_.seed));
  upcoming_.emplace(*sampler_, launch_.member.rank, kBatchesAhead);
  EGERIA_ASSIGN_OR_RETURN(rate_.kind, ParseScheduleKind(options_.schedule));
  rate_.base = options_.learning_rate;
  rate_.warmup_steps = options_.warmup_steps;
  rate_.milestones = options_.milestones;
  rate_.gamma = options_.gamma;
  return absl::OkStatus();
}

absl::Status Run::MakeReplica() {
  ReplicaOptions options;
  options.model = ModelName(options_);
  options.channels = task_.train.channels;
  options.classes = task_.train.classes;
  options.partition.patterns = options_.module_patterns;
  options.momentum = options_.momentum;
  options.weight_decay = options_.weight_decay;
  options.seed = options_.seed;
  options.device = device_;
  EGERIA_ASSIGN_OR_RETURN(replica_, Replica::Make(options, launch_.training_group));
  return absl::OkStatus();
}

// Plans the length of the training: the epochs that were asked for, and the steps that the saved time buys. A resumed
// run counts on the same saving as before, so that its learning rates stay the same.
absl::Status Run::PlanSteps(const std::optional<Checkpoint>& restored) {
  const ImageSet& images = task_.train;
  if (!options_.controller.empty()) {
    EGERIA_ASSIGN_OR_RETURN(
        step_shares_,
        StepSharesOfRankZero(launch_.member, replica_->modules(),
                             {options_.batch_size, images.channels, images.height, images.width}, device_));
  }
  total_steps_ = rate_.total_steps = options_.epochs * sampler_->steps_per_epoch();
  if (!options_.reinvest) return absl::OkStatus();
  if (restored.has_value()) {
    reinvested_saving_ = restored->reinvested_saving;
  } else if (options_.reinvest_saving > 0) {
    reinvested_saving_ = options_.reinvest_saving;
  } else {
    EGERIA_ASSIGN_OR_RETURN(const std::string policy, BuildPolicyJson(options_));
    EGERIA_ASSIGN_OR_RETURN(reinvested_saving_,
                            worker::PlannedSaving(policy, total_steps_, step_shares_, options_.budget,
                                                  PlannedRates(rate_), worker::EmbeddingPrefix(replica_->modules())));
  }
  total_steps_ = rate_.total_steps = worker::ReinvestedSteps(rate_.total_steps, reinvested_saving_);
  if (leader()) {
    LogInfo("reinvest: ", absl::StrFormat("%.1f %%", 100 * reinvested_saving_),
            " of the time is expected to be saved, and the "
            "training takes ",
            total_steps_, " steps in place of ", options_.epochs * sampler_->steps_per_epoch());
  }
  return absl::OkStatus();
}

// Two runs must have this in common for one to continue the other.
std::string Run::Identity() const {
  std::string modules;
  for (const worker::LayerModule& module : replica_->modules()) absl::StrAppend(&modules, " ", module.name());
  const auto frozen = options_.freeze_first > 0 ? absl::StrCat(", first ", options_.freeze_first, " frozen") : "";
  return absl::StrCat("task ", options_.task, ", seed ", options_.seed, ", batch ", options_.batch_size, ", samples ",
                      task_.train.size(), ", modules", modules, frozen);
}

std::string Run::Mode() const {
  if (!options_.plans.empty()) return "plans";
  if (options_.controller.empty()) return "plain";
  return options_.observe ? "observe" : "act";
}

absl::StatusOr<std::optional<Checkpoint>> Run::Restore() {
  if (!options_.resume) return std::nullopt;
  EGERIA_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                          ReadOnRankZero(options_.checkpoint, launch_.member.rank, launch_.commit_group));
  if (!bytes.has_value()) {
    if (leader()) LogInfo("no checkpoint at ", options_.checkpoint, " yet: starting from the beginning");
    return std::nullopt;
  }
  EGERIA_ASSIGN_OR_RETURN(Checkpoint checkpoint, Decode(*bytes));
  if (checkpoint.run != Identity()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "CHECKPOINT_MISMATCH", options_.checkpoint, " is of (",
                      checkpoint.run, "), this run is (", Identity(), "): use the same flags, or another file");
  }
  if (checkpoint.random_states.empty()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_CHECKPOINT", "it has the random states of no rank");
  }
  at::NoGradGuard no_gradients;
  EGERIA_RETURN_IF_ERROR(RestoreTensors(checkpoint.tensors, replica_.get()));
  if (const size_t rank = launch_.member.rank; rank < checkpoint.random_states.size()) {
    RestoreRandomState(checkpoint.random_states[rank], device_);
  }
  if (const int before = static_cast<int>(checkpoint.random_states.size()); before != launch_.member.world_size) {
    if (leader()) {
      LogInfo("the checkpoint is of ", before, " ranks, and this run has ", launch_.member.world_size,
              ": it goes on where as many samples have been seen");
    }
    checkpoint = ForOtherRanks(std::move(checkpoint), before, launch_.member.world_size);
  }
  seconds_ = checkpoint.seconds;
  share_steps_ = checkpoint.frozen_share_steps;
  share_seconds_ = checkpoint.frozen_share_seconds;
  rates_ = worker::LearningRates(checkpoint.learning_rate_sum);
  for (size_t i = 0; i + 4 < checkpoint.switches.size(); i += 5) {
    const int64_t* const s = &checkpoint.switches[i];
    earlier_switches_.push_back({s[0], s[1] != 0, static_cast<int>(s[2]), s[3] != 0, PlanId(s[4])});
  }
  saved_step_ = checkpoint.step;
  return checkpoint;
}

absl::Status Run::SaveCheckpoint() {
  if (options_.checkpoint.empty() || saved_step_ == session_->step()) return absl::OkStatus();
  Checkpoint checkpoint;
  checkpoint.run = Identity();
  checkpoint.step = session_->step();
  checkpoint.frozen_prefix = replica_->freezer().frozen_prefix();
  checkpoint.applied_plan = session_->applied_plan().value();
  checkpoint.seconds = seconds_;
  checkpoint.frozen_share_steps = share_steps_;
  checkpoint.frozen_share_seconds = share_seconds_;
  checkpoint.learning_rate_sum = rates_.sum();
  checkpoint.reinvested_saving = reinvested_saving_;
  checkpoint.cache_job = cache_job_;
  std::vector<worker::Switch> switches = earlier_switches_;
  switches.insert(switches.end(), session_->switches().begin(), session_->switches().end());
  for (const worker::Switch& s : switches) {
    const int64_t values[] = {s.step, s.unfreeze, s.frozen_prefix, s.ranks_identical, s.plan.value()};
    checkpoint.switches.insert(checkpoint.switches.end(), std::begin(values), std::end(values));
  }
  EGERIA_ASSIGN_OR_RETURN(checkpoint.random_states, GatherRandomStates(device_, launch_.commit_group));
  if (leader()) {
    checkpoint.tensors = TensorsOf(replica_.get());
    EGERIA_ASSIGN_OR_RETURN(const std::string bytes, Encode(checkpoint));
    EGERIA_RETURN_IF_ERROR(WriteAtomically(options_.checkpoint, bytes));
  }
  saved_step_ = session_->step();
  // A resumed run starts with a new reducer; with more than two ranks its buckets decide the order in which
  // gradients are added up, so this run takes a new one as well.
  return session_->RebuildReducer();
}

absl::Status Run::StartSession(const std::optional<Checkpoint>& restored) {
  worker::SessionParts parts;
  parts.freezer = &replica_->freezer();
  parts.reducer = &replica_->reducer();
  parts.commit_group = launch_.commit_group;
  parts.device = device_;
  parts.metrics = metrics_.get();
  parts.total_steps = total_steps_;
  parts.freeze_first = options_.freeze_first;
  if (options_.on_divergence == "resync") {
    parts.resync = [this] { return TakeFromRankZero(replica_.get(), launch_.member.rank, launch_.commit_group); };
  }
  if (restored.has_value()) {
    parts.step = restored->step;
    parts.frozen_prefix = restored->frozen_prefix;
    parts.applied_plan = PlanId(restored->applied_plan);
  }
  if (!options_.plans.empty()) {
    EGERIA_ASSIGN_OR_RETURN(const std::vector<PlannedSwitch> plans, ReadPlans(options_.plans));
    std::vector<worker::PlanSchedule::Entry> entries;
    for (const PlannedSwitch& plan : plans) entries.push_back({plan.step, plan.frozen_prefix});
    EGERIA_ASSIGN_OR_RETURN(
        parts.plans, worker::PlanSchedule::Make(std::move(entries), static_cast<int>(replica_->modules().size())));
  }
  if (!options_.controller.empty()) {
    LinkDescription link;
    link.options = &options_;
    link.member = &launch_.member;
    link.modules = &replica_->modules();
    link.image_shape = {task_.train.channels, task_.train.height, task_.train.width};
    link.device = device_;
    link.step_shares = step_shares_;
    link.total_steps = total_steps_;
    link.planned_learning_rates = PlannedRates(rate_);
    std::vector<std::pair<int64_t, int>> changes;
    for (const worker::Switch& s : earlier_switches_) changes.emplace_back(s.step, s.frozen_prefix);
    link.saved_before = worker::SavedBefore(parts.step, changes, static_cast<int>(replica_->modules().size()),
                                            step_shares_, total_steps_);
    link.mean_rate_before = rates_.MeanOver(parts.step);
    link.step = parts.step;
    link.frozen_prefix = std::max(parts.frozen_prefix, parts.freeze_first);
    link.applied_plan = parts.applied_plan;
    EGERIA_ASSIGN_OR_RETURN(LinkedAgent controller, LinkController(link));
    parts.agent = std::move(controller.agent);
    parts.snapshot_tensors = std::move(controller.snapshot_tensors);
  }
  if (options_.frozen_forward == "fused") parts.fused = std::make_unique<worker::FusedPrefix>(leader());
  if (restored.has_value()) cache_job_ = restored->cache_job;
  EGERIA_ASSIGN_OR_RETURN(parts.frozen_forward,
                          LinkCache(options_, launch_, device_, sampler_->steps_per_epoch(), &cache_job_));
  EGERIA_ASSIGN_OR_RETURN(session_, worker::Session::Start(std::move(parts)));
  return absl::OkStatus();
}

absl::Status Run::Prepare() {
  // A run must equal its repetition, its resumption and its observed twin to the bit, on a GPU as well.
  at::globalContext().setDeterministicCuDNN(true);
  EGERIA_RETURN_IF_ERROR(LoadData());
  EGERIA_RETURN_IF_ERROR(MakeReplica());
  if (!options_.metrics.empty()) {
    EGERIA_ASSIGN_OR_RETURN(metrics_, worker::SessionMetrics::ServeIfFree(
                                          MetricsAddress(options_.metrics, launch_.local_rank), options_.training_job));
    if (metrics_ != nullptr) LogInfo("metrics of rank ", launch_.member.rank, " at port ", metrics_->port());
  }
  // Random draws during training may differ between ranks; the weights above may not.
  at::manual_seed(options_.seed * 1'000'003 + 1 + static_cast<uint64_t>(launch_.member.rank));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<Checkpoint> restored, Restore());
  EGERIA_RETURN_IF_ERROR(PlanSteps(restored));
  return StartSession(restored);
}

absl::Status Run::Step(Progress* progress) {
  const int64_t step = session_->step();
  const int64_t epoch = step / sampler_->steps_per_epoch();
  const double rate = LearningRate(rate_, step);
  const double share = replica_->freezer().frozen_share();
  const auto start = Clock::now();
  at::Tensor loss;
  try {
    const std::vector<int64_t> samples = sampler_->Batch(step, launch_.member.rank);
    const Batch batch = LoadBatch(task_.train, task_.normalisation, samples,
                                  options_.augment == "random" ? &augmentation_ : nullptr, epoch, device_);
    replica_->SetLearningRate(rate);
    replica_->ZeroGrad();
    session_->BeginStep();
    if (session_->ExpectsBatches()) session_->Expect(upcoming_->From(step));
    const worker::BatchSamples which = {{samples.begin(), samples.end()}, batch.host_images};
    loss = at::cross_entropy_loss(session_->Forward(batch.images, &which), batch.labels);
    session_->BeforeBackward(loss);
    loss.backward();
    session_->AfterBackward();
    replica_->optimizer().step();
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kInternal, "STEP_FAILED", "step ", step + 1, ": ", worker::MessageOf(error));
  }
  const std::vector<double> rates = replica_->LearningRates();
  rates_.EndStep(rates);
  const int zero_lr_prefix = rates_.ZeroLrPrefix(rates, [this] { return replica_->ModuleGroups(); });
  EGERIA_RETURN_IF_ERROR(session_->EndStep(loss, rates, zero_lr_prefix));
  const double elapsed = Seconds(Clock::now() - start);
  seconds_ += elapsed;
  share_steps_ += share;
  share_seconds_ += share * elapsed;
  if (progress == nullptr) return absl::OkStatus();
  ShowSwitches(progress);
  if (const absl::Time now = MonotonicNow(); progress->Due(now)) {
    Moment moment;
    moment.step = step + 1;
    moment.total_steps = total_steps_;
    moment.epoch = epoch + 1;
    moment.epochs = epochs();
    moment.loss = loss.item<double>();
    moment.learning_rate = rate;
    moment.frozen_prefix = replica_->freezer().frozen_prefix();
    moment.modules = static_cast<int>(replica_->modules().size());
    const worker::TimeTotals account = session_->account().totals();
    if (account.saved_seconds.has_value() && Mode() != "plain") {
      moment.saved_seconds = *account.saved_seconds - account.total_spent_seconds();
    }
    progress->Show(moment, now);
  }
  return absl::OkStatus();
}

void Run::ShowSwitches(Progress* progress) {
  for (; switches_shown_ < session_->switches().size(); ++switches_shown_) {
    const worker::Switch& s = session_->switches()[switches_shown_];
    progress->Say(absl::StrFormat("step %d: %s, frozen prefix %d of %d, ranks identical: %s", s.step,
                                  s.unfreeze ? "unfreeze" : "freeze", s.frozen_prefix, replica_->modules().size(),
                                  s.ranks_identical ? "yes" : "NO"));
  }
}

absl::StatusOr<Score> Run::Evaluate() {
  const int64_t count = task_.validation.size();
  at::Tensor sums = at::zeros({2}, at::kDouble);  // correct answers; loss
  try {
    at::NoGradGuard no_gradients;
    replica_->reducer().SyncBuffers();  // the next forward pass would do the same
    replica_->SetTraining(false);
    const int64_t stride = kEvaluationBatch * launch_.member.world_size;
    for (int64_t begin = launch_.member.rank * kEvaluationBatch; begin < count; begin += stride) {
      std::vector<int64_t> indices;
      for (int64_t i = begin; i < std::min(begin + kEvaluationBatch, count); ++i) indices.push_back(i);
      const Batch batch = LoadBatch(task_.validation, task_.normalisation, indices, nullptr, 0, device_);
      const at::Tensor output = session_->Evaluate(batch.images);
      sums[0] += at::eq(at::argmax(output, 1), batch.labels).sum().item<double>();
      sums[1] += at::cross_entropy_loss(output, batch.labels).item<double>() * static_cast<double>(indices.size());
    }
    replica_->SetTraining(true);
    if (launch_.commit_group != nullptr) {
      std::vector<at::Tensor> tensors = {sums};
      launch_.commit_group->allreduce(tensors)->wait();
    }
  } catch (const std::exception& error) {
    return NamedError(absl::StatusCode::kInternal, "EVALUATION_FAILED", worker::MessageOf(error));
  }
  return Score{sums[0].item<double>() / static_cast<double>(count),
               sums[1].item<double>() / static_cast<double>(count)};
}

absl::StatusOr<RunSummary> Run::Summarise(const Score& score, double wall_seconds) {
  EGERIA_ASSIGN_OR_RETURN(bool identical, session_->RanksIdentical());
  const worker::SessionTotals totals = session_->totals();
  RunSummary summary;
  summary.task = options_.task;
  summary.policy = options_.plans.empty() ? options_.policy : "plans";
  summary.mode = Mode();
  summary.ranks = launch_.member.world_size;
  summary.seconds = seconds_;
  summary.wall_seconds = wall_seconds;
  summary.accuracy = score.accuracy;
  summary.validation_loss = score.loss;
  summary.steps = session_->step();
  summary.frozen_share = summary.steps > 0 ? share_steps_ / static_cast<double>(summary.steps) : 0;
  summary.frozen_share_by_time = seconds_ > 0 ? share_seconds_ / seconds_ : 0;
  std::vector<worker::Switch> switches = earlier_switches_;
  switches.insert(switches.end(), session_->switches().begin(), session_->switches().end());
  for (const worker::Switch& s : switches) {
    summary.decisions.push_back({s.step, s.unfreeze ? "unfreeze" : "freeze", s.frozen_prefix, s.ranks_identical});
    identical = identical && s.ranks_identical;
  }
  summary.ranks_identical = identical;
  summary.epochs = epochs();
  summary.seed = options_.seed;
  for (const worker::LayerModule& module : replica_->modules()) summary.modules.push_back(module.name());
  summary.parameters_hash = absl::StrFormat("%016x", replica_->Hash());
  summary.bytes_all_reduced = totals.bytes_reduced;
  summary.samples_sent = totals.samples_sent;
  summary.samples_dropped = totals.samples_dropped;
  summary.cache = totals.cache;
  summary.account = session_->account().totals();
  summary.time_saved_share = session_->account().NetShare();
  return summary;
}

absl::StatusOr<RunSummary> Run::Execute() {
  std::optional<Progress> progress;
  if (leader()) progress.emplace(stderr, ::isatty(STDERR_FILENO) == 1, MonotonicNow(), session_->step());
  const auto start = Clock::now();
  replica_->SetTraining(true);
  StopSignal stop_signal(options_.stop_on_signal, launch_.commit_group);
  for (bool stopped = false; !stopped && session_->step() < end_step();) {
    EGERIA_RETURN_IF_ERROR(Step(progress ? &*progress : nullptr));
    const int64_t done = session_->step();
    if (options_.checkpoint_every > 0 && done % options_.checkpoint_every == 0)
      EGERIA_RETURN_IF_ERROR(SaveCheckpoint());
    EGERIA_ASSIGN_OR_RETURN(stopped, stop_signal.Agreed(done));
    const int64_t epoch_steps = options_.evaluate_every * sampler_->steps_per_epoch();
    if (epoch_steps > 0 && done % epoch_steps == 0 && done < end_step()) {
      EGERIA_ASSIGN_OR_RETURN(const Score score, Evaluate());
      if (progress) {
        progress->Say(absl::StrFormat("epoch %d: accuracy %.4f, validation loss %.4f",
                                      done / sampler_->steps_per_epoch(), score.accuracy, score.loss));
      }
    }
  }
  if (progress) progress->Finish();
  EGERIA_RETURN_IF_ERROR(SaveCheckpoint());
  EGERIA_ASSIGN_OR_RETURN(const Score score, Evaluate());
  EGERIA_ASSIGN_OR_RETURN(RunSummary summary, Summarise(score, Seconds(Clock::now() - start)));
  EGERIA_RETURN_IF_ERROR(session_->Stop(/*finished=*/session_->step() == total_steps_));
  return summary;
}

}  // namespace

absl::StatusOr<RunSummary> Train(const Options& options, const Launch& launch, c10::Device device) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  Run run(options, launch, device);
  EGERIA_RETURN_IF_ERROR(run.Prepare());
  return run.Execute();
}

}  // namespace egeria::trainer

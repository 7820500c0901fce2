#ifndef EGERIA_COMMON_POLICY_POLICY_H_
#define EGERIA_COMMON_POLICY_POLICY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/plasticity/activation_metric.h"

namespace egeria::policy {

// Learning rates that differ by a smaller part than this are the same: schedules work them out in floating point.
inline constexpr double kRateSlack = 1e-9;

// A shape is all that a policy must know of its job.
struct JobShape {
  int modules = 0;              // at least 2
  int64_t total_steps = 0;      // 0 where it is unknown
  bool losses_reported = true;  // false where no observation will ever have a loss
  int64_t first_step = 0;       // optimizer steps done when the job began, e.g. from a checkpoint
  int ranks = 1;                // data-parallel processes
  // One entry per module: the part of a step's time, with nothing frozen, that freezing the module saves once all
  // before it are frozen; and its number of parameters. Empty where nobody knows.
  std::vector<double> step_shares = {};
  std::vector<int64_t> parameter_counts = {};
  // Learning rates at evenly spread steps of the whole training, the first and the last included; empty if unknown.
  std::vector<double> planned_learning_rates = {};
  double budget = 0;            // part of the job's time that is to be saved, and no more; 0: as much as can be
  double saved_before = 0;      // part of the job's time that was saved before `first_step`
  double mean_rate_before = 0;  // mean learning rate of the steps before `first_step`; 0 if unknown
  int embedding_prefix = 0;     // front modules that are lookup tables, such as embeddings
};

// A reading holds the gradients of one step at fixed weights, told apart in `parts` equal parts of its samples: the
// ranks' shares, or with one rank parts of its batch. Entry i of a list belongs to module first_module + i; the lists
// go on to the last. With g_p the gradient of part p's mean loss, of all parameters of a module:
struct GradientReading {
  int64_t step = 0;  // optimizer steps done when this one has ended
  int first_module = 0;
  int parts = 1;                        // 1: noise cannot be told
  std::vector<double> mean_of_squares;  // mean over p of ||g_p||^2
  std::vector<double> square_of_mean;   // ||mean over p of g_p||^2
  int64_t samples = 0;                  // the step had over all ranks; 0 if unknown
  std::vector<double> progress;         // estimates E g' P E g without bias, P the optimizer's; empty if unknown
};

// An account tells what freezing has saved of rank 0's time so far, and what measuring for the policy has taken of it.
struct Account {
  double saved_seconds = 0;
  double measuring_seconds = 0;
  double active_step_seconds = 0;  // mean time of a step with nothing frozen, Egeria's own time left out
  double frozen_step_seconds = 0;  // mean time with what is frozen now; 0: nothing is, or it has not been measured
  int frozen_prefix = 0;           // in frozen_step_seconds; plans take effect some steps after they are decided
  double switch_seconds = 0;       // time of a change of the frozen prefix, recompilation included; 0: unknown

  bool operator==(const Account&) const = default;
};

// An observation is one thing that a policy learns about its job. A field that was not observed is empty.
struct Observation {
  int64_t step = 0;
  std::optional<int> module;            // the one that `plasticity` belongs to
  std::optional<double> plasticity;     // distance between training and reference, in the metric that was asked for
  std::optional<double> loss;           // training loss of this step
  std::optional<double> learning_rate;  // in force, of the first parameter group whose rate is not 0
  std::optional<int> zero_lr_prefix;    // front modules whose parameters all have the learning rate 0
  std::optional<int> frozen_by_script;  // front modules of which the script lets nothing train; not the last one
  std::optional<GradientReading> gradients;
  std::optional<Account> account;
};

enum class Action { kFreeze, kUnfreeze };
inline const char* ActionName(Action action) { return action == Action::kFreeze ? "freeze" : "unfreeze"; }

// A decision says what is to be frozen from now on, and why.
struct Decision {
  int64_t step = 0;
  Action action = Action::kFreeze;
  int frozen_prefix = 0;  // modules 0..frozen_prefix-1 are to be frozen
  std::string reason;     // one sentence with the numbers that led to it
};

// A proposal says what a rule wants to be frozen, modules 0..prefix-1, and why, as a decision's reason does.
struct Proposal {
  int prefix = 0;
  std::string reason;
};

// By this a policy wants a module's plasticity to be measured now.
struct Monitoring {
  int module = 0;
  int interval_steps = 1;    // n
  int batch_size = 2;        // b
  int refresh_readings = 1;  // take a new snapshot of the module after this many readings (W)
  plasticity::ActivationMetric metric = plasticity::ActivationMetric::kSpLoss;
};

// By this a policy wants to be told of the gradients of first_module and all behind it, at every step that is a
// multiple of interval_steps. Gradients of frozen modules are computed for it, and thrown away.
struct GradientMonitoring {
  int interval_steps = 1;
  int first_module = 0;
};

// An estimate is a signal-to-noise ratio of gradients, ||E g||^2 / E||g||^2 at the job's full batch, with the two-sided
// 90 % interval around it. The truth lies in 0..1; an estimate may be under 0.
struct SnrEstimate {
  double value = 0;
  double lower = 0;
  double upper = 0;
};

// A module's status is the policy's knowledge of it, for metrics and people.
struct ModuleStatus {
  std::optional<double> plasticity;  // newest reading, not smoothed
  std::optional<double> slope;
  std::optional<double> threshold;
  int consecutive = 0;  // slopes in a row under the threshold
  int readings = 0;     // since the module became frontmost
  std::optional<SnrEstimate> snr;
  std::optional<double> snr_threshold;  // the policy compares `snr` with it, at the job's batch
};

struct PolicyStatus {
  bool bootstrapping = false;
  std::string blocked;  // says why nothing more can freeze as long as things stay as they are; empty if something can
  std::string advice;   // says what would serve the training better than freezing; empty if nothing is known to
  std::vector<ModuleStatus> modules;
};

// A policy decides what to freeze from what it observes. It is pure: it has no clock, no I/O, no randomness and no
// threads. The same observations give the same decisions, so that a controller can rebuild it from the journal.
// Thread-compatible.
//
// It assumes that its own decisions come true. Adopt() tells it what is true at once.
class Policy {
 public:
  virtual ~Policy() = default;

  // Takes in one observation; observations come in the order of their steps, so that a reading which comes late carries
  // the step at which it comes. Returns a decision if this observation causes one: at most one, and never one that
  // leaves the frozen prefix as it is.
  virtual std::optional<Decision> Observe(const Observation& observation) = 0;

  // Somebody else has set the frozen prefix (an operator, a checkpoint). The policy goes on from there, with fresh
  // history for the module that is now frontmost. Requires 0 <= frozen_prefix < modules.
  virtual void Adopt(int64_t step, int frozen_prefix) = 0;

  // Returns the prefix that the policy has decided or adopted.
  virtual int frozen_prefix() const = 0;

  // Returns what to measure now; empty when the policy needs no plasticity (yet, or ever).
  virtual std::optional<Monitoring> monitoring() const { return std::nullopt; }

  // Returns the gradients to tell of now; empty when the policy needs none (yet, or ever).
  virtual std::optional<GradientMonitoring> gradient_monitoring() const { return std::nullopt; }

  // Says to somebody else who wants to freeze modules 0..prefix-1 why they should not be frozen now, in one sentence
  // with the numbers; empty where nothing speaks against it.
  // Requires 0 <= prefix < modules.
  virtual std::optional<std::string> Objection(int /*prefix*/) const { return std::nullopt; }

  // Says whether losses are of further use to it; nobody needs to record them otherwise.
  virtual bool wants_loss() const { return false; }

  // Says whether accounts are of further use to it.
  virtual bool wants_account() const { return false; }

  // Returns the step at which the policy wants an observation, which may hold nothing else, of that step or a later
  // one; empty where it waits for none.
  virtual std::optional<int64_t> awaited_step() const { return std::nullopt; }

  // Returns PolicyStatus::blocked, and is cheap enough for every observation.
  virtual std::string blocked() const { return ""; }

  // Returns PolicyStatus::advice, which people may follow. The policy itself never acts on it.
  virtual std::string advice() const { return ""; }

  virtual PolicyStatus status() const = 0;
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_POLICY_H_

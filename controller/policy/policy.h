#ifndef EGERIA_CONTROLLER_POLICY_POLICY_H_
#define EGERIA_CONTROLLER_POLICY_POLICY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace egeria::policy {

// One thing that a policy learns about its job. A field that was not observed is empty.
struct Observation {
  int64_t step = 0;
  std::optional<int> module;           // of the plasticity
  std::optional<double> plasticity;    // SP loss between training and reference
  std::optional<double> loss;          // training loss of this step
  std::optional<double> learning_rate; // of the first parameter group, in force at this step
};

enum class Action { kFreeze, kUnfreeze };
const char* ActionName(Action action);  // "freeze", "unfreeze"

// What is to be frozen from now on, and why.
struct Decision {
  int64_t step = 0;
  Action action = Action::kFreeze;
  int frozen_prefix = 0;  // modules 0..frozen_prefix-1 are to be frozen
  std::string reason;     // one sentence with the numbers that led to it
};

// What the policy wants to be measured now.
struct Monitoring {
  int module = 0;
  int interval_steps = 1;     // n
  int batch_size = 2;         // b
  int refresh_readings = 1;   // take a new snapshot of the module after this many readings (W)
};

// What the policy knows of one module, for metrics and people.
struct ModuleStatus {
  std::optional<double> plasticity;  // newest reading, not smoothed
  std::optional<double> slope;
  std::optional<double> threshold;
  int consecutive = 0;               // slopes in a row under the threshold
  int readings = 0;                  // since the module became frontmost
};

struct PolicyStatus {
  bool bootstrapping = false;
  std::vector<ModuleStatus> modules;
};

// Decides what to freeze from what it observes. Pure: no clock, no I/O, no randomness, no threads; the same
// observations give the same decisions, which is what lets a controller rebuild it from the journal.
// Thread-compatible.
//
// A policy assumes that its own decisions come true. What it is told by Adopt() is true at once.
class Policy {
 public:
  virtual ~Policy() = default;

  // Takes in one observation; observations come in the order of their steps, so that a reading which comes
  // late carries the step at which it comes. Returns a decision if this observation causes one: at most one,
  // and never one that leaves the frozen prefix as it is.
  virtual std::optional<Decision> Observe(const Observation& observation) = 0;

  // Someone else has set the frozen prefix (an operator, a checkpoint). The policy goes on from there, with
  // fresh history for the module that is now frontmost. Requires 0 <= frozen_prefix < modules.
  virtual void Adopt(int64_t step, int frozen_prefix) = 0;

  // The prefix that it has decided or adopted.
  virtual int frozen_prefix() const = 0;

  // What to measure now; empty when it needs no plasticity (yet, or ever).
  virtual std::optional<Monitoring> monitoring() const = 0;

  // False when losses are of no further use to it, so that nobody needs to record them.
  virtual bool wants_loss() const = 0;

  // The step of which it is to be told that training has got there, by an observation of that step or a later
  // one that may hold nothing else. Empty: none.
  virtual std::optional<int64_t> awaited_step() const { return std::nullopt; }

  virtual PolicyStatus status() const = 0;
};

}  // namespace egeria::policy

#endif  // EGERIA_CONTROLLER_POLICY_POLICY_H_

#ifndef EGERIA_WORKER_TRAINER_OPTIONS_H_
#define EGERIA_WORKER_TRAINER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/cache/client/cost_model.h"
#include "worker/trainer/schedule.h"

namespace egeria::trainer {

// The command line of egeria-train, with what the environment adds.
struct Options {
  std::string task;  // "digits", "resnet20" or "resnet56"
  std::string data;
  int64_t train_samples = 0;  // 0: all
  int64_t validation_samples = 0;

  int64_t epochs = 0;  // 0: the task's default, as for the next two
  int batch_size = 0;  // per rank
  double learning_rate = 0;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  std::string schedule = "step";
  std::vector<double> milestones = {0.5, 0.75};
  double gamma = 0.1;
  int64_t warmup_steps = 0;
  uint64_t seed = 1;
  int64_t stop_after = 0;       // steps; 0: run to the end
  bool stop_on_signal = false;  // SIGUSR1
  int64_t evaluate_every = 0;   // epochs; 0: at the end only
  int threads = 0;              // 0: torch's choice
  std::string device = "auto";
  std::string augment;  // "none" or "random"; "" until resolved: the task's

  std::vector<std::string> module_patterns;
  std::string policy;  // "" until resolved: "auto" with a controller, else "none"
  std::string policy_json;
  std::optional<int> interval;
  std::optional<int> window;
  std::optional<double> tolerance;
  std::optional<int> probe_batch;
  std::optional<bool> bootstrap;
  std::vector<std::string> freeze_at;  // "FRACTION:PREFIX", for the policy schedule
  double budget = 0;                   // part of the time to save; 0: as much as can be
  bool reinvest = false;               // spend the time that is saved on more steps
  double reinvest_saving = 0;          // the part of the time that is expected to be saved; 0: what the policy plans
  bool observe = false;
  std::string on_divergence = "stop";  // or "resync"
  int freeze_first = 0;                // layer modules, from the first step to the last
  std::string controller;              // "" is none
  std::string plans;                   // file
  std::string cache;                   // "unix:/path"; "" is none
  std::string cache_use = "auto";
  std::string frozen_forward = "exact";  // or "fused"
  std::string cache_precision = "exact";
  std::string cache_compression = "auto";
  uint64_t cache_job_quota = 0;                                // bytes; 0: the daemon's
  double cache_patience = cache::CostModel::kLongestPatience;  // seconds with a lookup; there is no flag for it

  std::string checkpoint;
  int64_t checkpoint_every = 0;  // steps; 0: at the end only
  bool resume = false;
  std::string summary;
  std::string training_job;  // "" is the task's name
  std::string metrics;       // HOST:PORT or PORT; "" is none
  std::string log_level = "info";

  std::string job_id;            // EGERIA_JOB_ID; "" draws one
  std::string job_secret;        // EGERIA_JOB_SECRET; "" draws one
  int64_t first_generation = 0;  // EGERIA_GENERATION, before torchrun restarts any rank; 0: the controller numbers them
  int64_t restarts = 0;          // TORCHELASTIC_RESTART_COUNT
};

// The command line leads to options, or to the status with which the program is to end at once (after
// --help, or after an error that has been printed).
struct CommandLine {
  Options options;
  std::optional<int> exit_code;
};
CommandLine ParseCommandLine(int argc, char** argv);

// Fills in the task's defaults and checks what depends on more than one flag.
// Errors: INVALID_ARGUMENT [BAD_FLAG], saying what to change.
absl::Status ResolveOptions(Options* options);

// The model that a task trains.
std::string ModelName(const Options& options);

// egeria.v1.PolicyConfig in JSON, out of --policy, --policy-json and the single constants, which win.
// Errors: INVALID_ARGUMENT [BAD_FLAG].
absl::StatusOr<std::string> BuildPolicyJson(const Options& options);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_OPTIONS_H_

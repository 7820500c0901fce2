#include "worker/trainer/options.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/config/values.h"
#include "common/policy/constants.h"
#include "common/policy/policy_config.h"
#include "nlohmann/json.hpp"

namespace egeria::trainer {
namespace {

constexpr const char* kDescription =
    "Trains an image classifier, data-parallel under torchrun, and freezes layer modules as an Egeria controller tells "
    "it to.\nExample: torchrun --nproc-per-node 2 --no-python egeria-train --task resnet20 --data DIR --epochs 30";

// The rule's own default for b; see docs/internals/plasticity.md.
constexpr int kDefaultProbeBatch = 32;

constexpr const char* kPlannedSaving = "planned";  // a value of --reinvest

template <typename... Args>
absl::Status BadFlag(const Args&... message) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_FLAG", message...);
}

void AddTrainingFlags(CLI::App* app, Options* o) {
  app->add_option("--task", o->task, "Model and data: digits (8x8 digits), resnet20 or resnet56 (CIFAR-10)")
      ->required()
      ->check(CLI::IsMember({"digits", "resnet20", "resnet56"}));
  app->add_option("--data", o->data,
                  "Folder of CIFAR-10's binary files, or the file that deploy/digits/export_digits.py wrote")
      ->required();
  app->add_option("--train-samples", o->train_samples, "Use only the first N training images (0: all)")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--validation-samples", o->validation_samples, "Use only the first N validation images (0: all)")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--epochs", o->epochs, "Number of passes over the data (default: digits 30, resnets 100)")
      ->check(CLI::PositiveNumber);
  app->add_option(
         "--batch-size", o->batch_size,
         "Samples in a batch of each rank (default: digits 32, resnets 64); an incomplete last batch is dropped")
      ->check(CLI::PositiveNumber);
  app->add_option("--lr", o->learning_rate, "Learning rate (default: digits 0.05, resnets 0.1)")
      ->check(CLI::PositiveNumber);
  app->add_option("--momentum", o->momentum, "Momentum of SGD")->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app->add_option("--weight-decay", o->weight_decay, "Weight decay of SGD")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_option("--schedule", o->schedule, "Schedule of the learning rate")
      ->check(CLI::IsMember({"constant", "step", "cosine"}))
      ->capture_default_str();
  app->add_option("--lr-milestones", o->milestones,
                  "Shares of the training at which the schedule step lowers the learning rate")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("--lr-gamma", o->gamma, "Factor by which the schedule step lowers the learning rate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--warmup-steps", o->warmup_steps, "Number of steps of linear warm-up")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--seed", o->seed, "Seed of the weights, the order of the samples and the augmentation")
      ->capture_default_str();
  app->add_option("--stop-after", o->stop_after, "Stop after this many steps, as if interrupted")
      ->check(CLI::NonNegativeNumber);
  app->add_flag("--stop-on-signal", o->stop_on_signal,
                "Have SIGUSR1, which may announce a time limit, make all ranks write a checkpoint and stop");
  app->add_option("--evaluate-every", o->evaluate_every, "Validate every N epochs (0: at the end only)")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--threads", o->threads, "Number of compute threads of each rank (torchrun's default is 1)")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--device", o->device, "Device: auto, cpu, cuda and so on")->capture_default_str();
  app->add_option("--augment", o->augment,
                  "Augmentation: none, or random crops and flips (default: digits none, resnets random)")
      ->check(CLI::IsMember({"none", "random"}));
}

void SetBudget(const std::string& text, Options* o) {
  config::Part part;
  if (!text.empty() && !(config::Parse({text}, &part).ok() && part.value > 0 && part.value < 1)) {
    throw CLI::ValidationError("--budget", "'" + text + "' is not a part of the time, such as 20%");
  }
  o->budget = part.value;
}

void SetReinvest(const std::string& text, Options* o) {
  o->reinvest = true;
  config::Part part;
  if (text != kPlannedSaving && !(config::Parse({text}, &part).ok() && part.value > 0 && part.value < 1)) {
    throw CLI::ValidationError("--reinvest", "'" + text + "' is not a part of the time, such as 8%");
  }
  o->reinvest_saving = part.value;
}

void AddEgeriaFlags(CLI::App* app, Options* o) {
  app->add_option("--controller", o->controller,
                  "Address of the controller, unix:/path or HOST:PORT; none: train without one")
      ->envname("EGERIA_CONTROLLER");
  app->add_option("--policy", o->policy, "Policy that decides (docs/reference/policies.md); default: auto")
      ->envname("EGERIA_POLICY")
      ->check(CLI::IsMember(policy::PolicyNames()));
  app->add_option("--policy-json", o->policy_json,
                  "Constants of the policy as JSON, such as {\"plasticity\": {\"learning_rate_drop\": 5}}; "
                  "EGERIA_POLICY_OPTIONS has the inner object alone");
  app->add_option("--interval", o->interval, "Steps between two readings of plasticity or actnorm (n)")
      ->check(CLI::PositiveNumber);
  app->add_option("--window", o->window, "Number of readings in the window of plasticity or actnorm (W)")
      ->check(CLI::PositiveNumber);
  app->add_option("--tolerance", o->tolerance, "Threshold of plasticity or actnorm, as a share of the first slopes (T)")
      ->check(CLI::PositiveNumber);
  app->add_option("--probe-batch", o->probe_batch, "Samples of a reading (b), at most --batch-size; default: 32")
      ->check(CLI::PositiveNumber);
  app->add_option("--bootstrap", o->bootstrap, "Whether plasticity or actnorm waits until the loss has settled")
      ->transform(CLI::CheckedTransformer(std::map<std::string, bool>{{"on", true}, {"off", false}}));
  app->add_option("--freeze-at", o->freeze_at,
                  "Entries of the policy schedule, each FRACTION:PREFIX, such as 0.5:2 0.75:4")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option_function<std::string>(
         "--budget", [o](const std::string& text) { SetBudget(text, o); },
         "Part of the time to save, such as 20%; no more freezes than that takes")
      ->envname("EGERIA_BUDGET");
  app->add_option_function<std::string>(
         "--reinvest", [o](const std::string& text) { SetReinvest(text, o); },
         "Spend the time that freezing saves on more steps: the part given, such as 8%, or as much as the policy plans "
         "to save on this machine")
      ->expected(0, 1)
      ->default_str(kPlannedSaving);
  app->add_flag("--observe", o->observe, "Decide and report, but freeze nothing");
  app->add_option("--on-divergence", o->on_divergence,
                  "What happens where the ranks' parameters differ: stop ends the training, resync gives all ranks "
                  "those of rank 0")
      ->envname("EGERIA_ON_DIVERGENCE")
      ->check(CLI::IsMember({"stop", "resync"}))
      ->capture_default_str();
  app->add_option("--modules", o->module_patterns,
                  "Regular expressions, one for each layer module, which are matched against the names of the blocks")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("--freeze-first", o->freeze_first,
                  "Number of layer modules that are frozen from the first step to the last, whatever the policy says")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--plans", o->plans,
                  "File with the steps at which layers freeze without a controller: JSON of {step, frozen_prefix}, or "
                  "the summary of another run");
  app->add_option("--cache", o->cache,
                  "Address of the node's egeria-cache, unix:/path, which lets a pass skip frozen layer modules; none: "
                  "compute them")
      ->envname("EGERIA_CACHE");
  app->add_option("--cache-use", o->cache_use, "When the cache is used: as long as it saves time (auto), or always")
      ->envname("EGERIA_CACHE_USE")
      ->check(CLI::IsMember({"auto", "always"}))
      ->capture_default_str();
  app->add_option(
         "--frozen-forward", o->frozen_forward,
         "How frozen layer modules run where the cache does not serve: exact, or fused, which differs in the last bits")
      ->envname("EGERIA_FROZEN_FORWARD")
      ->check(CLI::IsMember({"exact", "fused"}))
      ->capture_default_str();
  // Rounding is not for a trainer whose every pass has to be the same to the bit.
  app->add_option("--cache-precision", o->cache_precision,
                  "How the cache keeps activations; this trainer takes exact ones only")
      ->envname("EGERIA_CACHE_PRECISION")
      ->check(CLI::IsMember({"exact"}))
      ->capture_default_str();
  app->add_option(
         "--cache-compression", o->cache_compression,
         "Lossless compression of cached activations; auto: once half of the quota is full, if that saves a fourth")
      ->envname("EGERIA_CACHE_COMPRESSION")
      ->check(CLI::IsMember({"auto", "none", "lz4", "zstd"}))
      ->capture_default_str();
  app->add_option("--cache-job-quota", o->cache_job_quota,
                  "Disk space in the cache for this job, such as 8GiB; the cache's own quota_per_job holds where it is "
                  "less or this is 0")
      ->envname("EGERIA_CACHE_JOB_QUOTA")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check([](const std::string& bytes) {
        return bytes == "0" || bytes.size() > 7 || std::stoull(bytes) >= 1 << 20 ? "" : "must be at least 1MiB";
      })
      ->capture_default_str();
}

void AddOutputFlags(CLI::App* app, Options* o) {
  app->add_option("--checkpoint", o->checkpoint, "File for checkpoints, which is replaced in one piece");
  app->add_option("--checkpoint-every", o->checkpoint_every, "Steps between checkpoints (0: at the end only)")
      ->check(CLI::NonNegativeNumber);
  app->add_flag("--resume", o->resume, "Go on from --checkpoint if it exists");
  app->add_option("--summary", o->summary, "File for a summary in JSON");
  app->add_option("--training-job", o->training_job, "Name of the job for people and metrics (default: the task)")
      ->envname("EGERIA_TRAINING_JOB");
  app->add_option("--metrics-port", o->metrics,
                  "Serve /metrics at HOST:PORT or PORT, plus the local rank (0: a free port)")
      ->envname("EGERIA_WORKER_METRICS");
  app->add_option("--log-level", o->log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// 0 where it is not set, or is no number.
int64_t IntegerFromEnvironment(const char* name) {
  int64_t value = 0;
  return absl::SimpleAtoi(Environment(name), &value) ? value : 0;
}

// The single constants of the rule, which win over those of --policy-json.
void AddPlasticityConstants(const Options& o, nlohmann::json* constants) {
  if (o.interval) (*constants)["interval_steps"] = *o.interval;
  if (o.window) (*constants)["window"] = *o.window;
  if (o.tolerance) (*constants)["tolerance"] = *o.tolerance;
  if (o.bootstrap) (*constants)["bootstrap"] = *o.bootstrap;
}

// A probe batch that the ranks can fill, for a policy that has plasticity measured.
absl::Status AddProbeBatch(const Options& o, nlohmann::json* constants) {
  if (o.probe_batch) (*constants)["batch_size"] = *o.probe_batch;
  const auto probe = constants->find("batch_size");
  if (probe == constants->end()) {
    (*constants)["batch_size"] = std::min(kDefaultProbeBatch, o.batch_size);
  } else if (probe->is_number_integer() && probe->get<int64_t>() > o.batch_size) {
    return BadFlag("a probe of ", probe->get<int64_t>(), " samples (--probe-batch) cannot be taken from batches of ",
                   o.batch_size, " (--batch-size)");
  }
  return absl::OkStatus();
}

}  // namespace

CommandLine ParseCommandLine(int argc, char** argv) {
  CommandLine line;
  CLI::App app(kDescription, "egeria-train");
  app.set_version_flag("--version", absl::StrCat("egeria-train ", Version()));
  // A script may put flags behind those of its caller.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  AddTrainingFlags(&app, &line.options);
  AddEgeriaFlags(&app, &line.options);
  AddOutputFlags(&app, &line.options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    line.exit_code = app.exit(error) == 0 ? 0 : 2;
    return line;
  }
  if (const std::string constants = Environment("EGERIA_POLICY_OPTIONS");
      !constants.empty() && line.options.policy_json.empty()) {
    line.options.policy_json = absl::StrCat("{\"", line.options.policy, "\": ", constants, "}");
  }
  line.options.job_id = Environment("EGERIA_JOB_ID");
  line.options.job_secret = Environment("EGERIA_JOB_SECRET");
  line.options.restarts = IntegerFromEnvironment("TORCHELASTIC_RESTART_COUNT");
  line.options.first_generation = IntegerFromEnvironment("EGERIA_GENERATION");
  if (const absl::Status status = ResolveOptions(&line.options); !status.ok()) {
    std::fprintf(stderr, "egeria-train: %s\n", std::string(status.message()).c_str());
    line.exit_code = 2;
  }
  return line;
}

absl::Status ResolveOptions(Options* o) {
  const bool digits = o->task == "digits";
  if (o->epochs == 0) o->epochs = digits ? 30 : 100;
  if (o->batch_size == 0) o->batch_size = digits ? 32 : 64;
  if (o->learning_rate == 0) o->learning_rate = digits ? 0.05 : 0.1;
  if (o->training_job.empty()) o->training_job = o->task;
  if (o->controller == "none") o->controller.clear();
  if (o->cache == "none" || o->observe) o->cache.clear();  // a run that observes does not freeze
  if (getenv("EGERIA_CACHE_FORMAT") != nullptr) {
    return BadFlag("EGERIA_CACHE_FORMAT is set: say EGERIA_CACHE_COMPRESSION (lz4, zstd) instead");
  }
  if (!o->cache.empty() && !absl::StartsWith(o->cache, "unix:/")) {
    return BadFlag("--cache (EGERIA_CACHE) is '", o->cache, "': give unix:/path, where egeria-cache listens, or none");
  }
  if (o->augment.empty()) o->augment = digits ? "none" : "random";
  if (digits && o->augment != "none") return BadFlag("--augment random is for images larger than the digits");
  if (o->policy.empty()) o->policy = o->controller.empty() ? "none" : "auto";
  if (o->controller.empty() && o->policy != "none") {
    // Not an error: a job must train whether or not a controller could be had for it.
    LogWarning("--policy ", o->policy,
               " has no effect without a controller: start through egeria-run, or give --controller ADDRESS");
    o->policy = "none";
  }
  if (o->reinvest && o->observe) return BadFlag("--reinvest spends what freezing saves, but --observe freezes nothing");
  if (o->reinvest && o->controller.empty() && o->reinvest_saving == 0) {
    LogWarning("--reinvest has no effect without a controller, as nothing will freeze");
    o->reinvest = false;
  }
  if (!o->controller.empty() && !o->plans.empty()) {
    return BadFlag("--plans takes the place of a controller: add --controller none");
  }
  if (o->resume && o->checkpoint.empty()) return BadFlag("--resume needs --checkpoint FILE");
  if (o->stop_on_signal && o->checkpoint.empty()) return BadFlag("--stop-on-signal needs --checkpoint FILE");
  if (o->checkpoint_every > 0 && o->checkpoint.empty()) {
    return BadFlag("--checkpoint-every needs --checkpoint FILE");
  }
  return BuildPolicyJson(*o).status();
}

std::string ModelName(const Options& options) { return options.task == "digits" ? "digitsnet" : options.task; }

absl::StatusOr<std::string> BuildPolicyJson(const Options& o) {
  nlohmann::json config = nlohmann::json::object();
  if (!o.policy_json.empty()) {
    config = nlohmann::json::parse(o.policy_json, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) return BadFlag("--policy-json is not a JSON object: ", o.policy_json);
    for (const auto& [key, value] : config.items()) {
      if (key != o.policy) {
        return BadFlag("--policy-json speaks of '", key, "', but the policy is '", o.policy, "'");
      }
    }
  }
  nlohmann::json& constants = config[o.policy];
  if (constants.is_null()) constants = nlohmann::json::object();
  if (!constants.is_object()) return BadFlag("--policy-json: '", o.policy, "' must be an object");
  const bool rule = o.policy == "plasticity" || o.policy == "actnorm";  // on whichever metric
  const policy::PolicyKind* kind = policy::FindKind(o.policy);
  const bool measures = kind != nullptr && kind->reads_plasticity;
  if ((o.probe_batch && !measures && o.policy != "none") ||
      ((o.interval || o.window || o.tolerance || o.bootstrap) && !rule && o.policy != "none")) {
    return BadFlag("the policy ", o.policy, " has none of these plasticity constants; --policy-json takes its own");
  }
  if (rule) AddPlasticityConstants(o, &constants);
  if (measures) EGERIA_RETURN_IF_ERROR(AddProbeBatch(o, &constants));
  if (!o.freeze_at.empty() && o.policy != "schedule") return BadFlag("--freeze-at needs --policy schedule");
  for (const std::string& text : o.freeze_at) {
    const std::vector<std::string> parts = absl::StrSplit(text, ':');
    double fraction = 0;
    int prefix = 0;
    if (parts.size() != 2 || !absl::SimpleAtod(parts[0], &fraction) || !absl::SimpleAtoi(parts[1], &prefix)) {
      return BadFlag("--freeze-at '", text, "' is not FRACTION:PREFIX, such as 0.5:2");
    }
    constants["entries"].push_back({{"fraction", fraction}, {"frozen_prefix", prefix}});
  }
  return config.dump();
}

}  // namespace egeria::trainer

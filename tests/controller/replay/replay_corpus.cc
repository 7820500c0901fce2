// Writes recordings of random jobs, by which the decisions of two versions of the policies can be compared:
//
//   replay_corpus FOLDER [JOBS]
//
// makes FOLDER/0000.jsonl and so on, and FOLDER/jobs.jsonl with each one's policy and options. Each recording is what a
// simulated training told the policy, which asks for readings as in a controller. It holds gradients, plasticity,
// losses, learning rates, accounts, modules without a rate, and what an operator or a checkpoint froze. `egeria replay`
// gives the decisions of the version that runs it. The same version makes the same recordings.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/policy/policy_config.h"
#include "common/policy/policy_proto.h"
#include "controller/replay/replay.h"
#include "google/protobuf/util/json_util.h"
#include "tests/common/policy/simulated_training.h"

namespace egeria::controller {
namespace {

using policy::JobShape;
using policy::MakePolicy;
using policy::Observation;
using policy::Policy;
using policy::SimulatedGradients;

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}

  double Between(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  double LogBetween(double low, double high) { return std::exp(Between(std::log(low), std::log(high))); }
  int Whole(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Happens(double chance) { return Between(0, 1) < chance; }
  double Noise() { return normal_(random_); }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

// The learning rate at a part of the training, 0..1.
std::function<double(double part)> RandomSchedule(Dice& dice) {
  const double peak = dice.LogBetween(1e-4, 0.5);
  const double warm_up = dice.Happens(0.3) ? dice.Between(0.02, 0.2) : 0;
  const int kind = dice.Whole(0, 5);
  const double first = dice.Between(0.3, 0.6), second = dice.Between(0.7, 0.9), drop = dice.Between(2, 20);
  const double end = dice.Happens(0.7) ? 0 : dice.Between(0.05, 0.5);
  return [=](double part) {
    if (part < warm_up) return peak * part / warm_up;
    switch (kind) {
      case 0: return peak;
      case 1: return peak * (end + (1 - end) * (1 + std::cos(3.14159265358979 * std::min(part, 1.0))) / 2);
      case 2: return peak * (part < first ? 1 : part < second ? 1 / drop : 1 / drop / drop);
      case 3: return peak * (1 - (1 - end) * std::min(part, 1.0));
      case 4: return peak * (part < first ? 1 : part < second ? 0.1 : 0.2);
      default: return peak / std::sqrt(1 + 40 * part);
    }
  };
}

struct Option {
  const char* policy;
  const char* name;
  std::function<std::string(Dice&)> value;
};

std::function<std::string(Dice&)> Number(double low, double high) {
  return [=](Dice& dice) { return absl::StrFormat("%.4g", dice.Between(low, high)); };
}
std::function<std::string(Dice&)> Count(int low, int high) {
  return [=](Dice& dice) { return absl::StrCat(dice.Whole(low, high)); };
}
std::string Coin(Dice& dice) { return dice.Happens(0.5) ? "true" : "false"; }

const std::vector<Option>& Options() {
  static const auto* options = new std::vector<Option>{
      {"auto", "start", Number(0.3, 0.95)},
      {"auto", "lr_area_left", Number(0.002, 0.2)},
      {"auto", "early_share", Number(0, 0.6)},
      {"auto", "every", Number(0.01, 0.1)},
      {"auto", "max_modules", Count(1, 6)},
      {"auto", "threshold", Number(0.01, 0.3)},
      {"auto", "late_threshold", Number(0.01, 0.3)},
      {"auto", "interval_steps", Count(1, 12)},
      {"auto", "readings", Count(24, 150)},
      {"auto", "min_readings", Count(4, 24)},
      {"auto", "unfreeze_rise", Number(1.01, 3)},
      {"staged", "begin", Number(0.2, 0.7)},
      {"staged", "end", Number(0.7, 0.95)},
      {"staged", "stages", Count(1, 6)},
      {"staged", "share", Number(0.1, 0.9)},
      {"staged", "area", Coin},
      {"staged", "veto", Coin},
      {"staged", "threshold", Number(0.01, 0.3)},
      {"staged", "every", Number(0.01, 0.1)},
      {"staged", "interval_steps", Count(1, 12)},
      {"finetune", "budget", Number(0.05, 0.9)},
      {"finetune", "frozen_prefix", Count(1, 1)},
      {"gradnorm", "percentile", Number(10, 90)},
      {"gradnorm", "every", Number(0.02, 0.2)},
      {"gradnorm", "check_steps", Count(20, 300)},
      {"gradnorm", "interval_steps", Count(1, 12)},
      {"rule", "interval_steps", Count(1, 20)},
      {"rule", "window", Count(3, 20)},
      {"rule", "tolerance", Number(0.05, 0.9)},
      {"rule", "signed_slope", Coin},
      {"rule", "bootstrap", Coin},
      {"rule", "learning_rate_drop", Number(1.5, 20)},
      {"rule", "learning_rate_rise", Number(1.05, 3)},
      {"rule", "unfreeze_steps", [](Dice& dice) { return absl::StrCat("[", dice.Whole(50, 2000), "]"); }},
  };
  return *options;
}

struct Job {
  std::string policy;
  std::string options;
  JobShape shape;
  int64_t steps = 0;  // that are run
};

JobShape RandomShape(Dice& dice, const std::function<double(double)>& schedule) {
  JobShape shape;
  shape.modules = dice.Whole(2, 10);
  shape.total_steps = std::lround(dice.LogBetween(200, 2500));
  shape.ranks = dice.Happens(0.25) ? 1 : dice.Whole(2, 4);
  shape.losses_reported = dice.Happens(0.85);
  if (dice.Happens(0.75)) {
    double sum = 0;
    for (int module = 0; module < shape.modules; ++module) {
      shape.step_shares.push_back(dice.Between(0.05, 1));
      sum += shape.step_shares.back();
    }
    const double covered = dice.Between(0.5, 0.95);
    for (double& share : shape.step_shares) share *= covered / sum;
  }
  if (dice.Happens(0.5)) {
    for (int module = 0; module < shape.modules; ++module) shape.parameter_counts.push_back(dice.Whole(10, 100'000));
  }
  if (dice.Happens(0.7)) {
    const int points = dice.Whole(20, 100);
    for (int i = 0; i <= points; ++i) {
      shape.planned_learning_rates.push_back(schedule(static_cast<double>(i) / points));
    }
  }
  if (dice.Happens(0.15)) shape.budget = dice.Between(0.05, 0.5);
  if (dice.Happens(0.3)) shape.embedding_prefix = 1;
  if (dice.Happens(0.15)) {
    const double part = dice.Between(0.1, 0.9);
    shape.first_step = std::lround(part * static_cast<double>(shape.total_steps));
    if (dice.Happens(0.7)) shape.mean_rate_before = (schedule(0) + schedule(part)) / 2;
    if (shape.budget > 0) shape.saved_before = dice.Between(0, shape.budget);
  }
  return shape;
}

Job RandomJob(Dice& dice, const std::function<double(double)>& schedule) {
  static constexpr const char* kPolicies[] = {"auto",       "auto",    "auto",     "auto",     "auto",     "snr",
                                              "snr",        "staged",  "staged",   "finetune", "gradnorm", "plasticity",
                                              "plasticity", "actnorm", "schedule", "none"};
  Job job;
  job.policy = kPolicies[dice.Whole(0, std::size(kPolicies) - 1)];
  job.shape = RandomShape(dice, schedule);
  job.steps = std::lround(dice.Between(0.95, 1.03) * static_cast<double>(job.shape.total_steps));
  const bool rule = job.policy == "plasticity" || job.policy == "actnorm";
  const std::string of = rule ? "rule" : job.policy == "snr" ? "auto" : job.policy;
  const double chance = dice.Happens(0.4) ? 0 : 0.3;
  std::vector<std::string> options;
  for (const Option& option : Options()) {
    if (option.policy != of || !dice.Happens(chance)) continue;
    const std::string name = option.name;
    if (job.policy == "snr" && (name == "lr_area_left" || name == "early_share")) continue;
    options.push_back(absl::StrCat("\"", name, "\":", option.value(dice)));
  }
  if (job.policy == "schedule") {
    const int deepest = job.shape.modules - 1;
    options.push_back(absl::StrFormat(
        R"("entries":[{"fraction":%.3f,"frozen_prefix":%d},{"fraction":%.3f,"frozen_prefix":%d}])",
        dice.Between(0.1, 0.5), dice.Whole(0, deepest), dice.Between(0.5, 0.9), dice.Whole(0, deepest)));
  }
  job.options = absl::StrCat("{", absl::StrJoin(options, ","), "}");
  if ((job.policy == "snr" || rule || job.policy == "gradnorm") && job.shape.budget == 0 && dice.Happens(0.3)) {
    job.shape.total_steps = 0;
  }
  return job;
}

// Signals of a training as functions of the module and of the part that is done.
struct Signals {
  std::function<double(int, double)> snr, progress, plasticity;
  double progress_noise = 0;
};

Signals RandomSignals(Dice& dice, int modules, const std::function<double(double)>& schedule) {
  Signals signals;
  std::vector<double> levels;
  const double level = dice.LogBetween(0.0005, 0.5);
  for (int i = 0; i < modules; ++i) levels.push_back(std::min(0.9, level * dice.LogBetween(0.3, 3)));
  const double change = dice.Between(0.2, 0.9), after = dice.LogBetween(0.01, 3);
  const bool falls = dice.Happens(0.4);
  if (dice.Happens(0.88)) {
    signals.snr = [=](int module, double part) {
      const double factor = falls ? schedule(part) / std::max(1e-9, schedule(0.25)) : part < change ? 1 : after;
      return std::clamp(levels[static_cast<size_t>(module)] * factor, 0.0, 0.95);
    };
  }
  const double first = dice.LogBetween(0.002, 1);
  signals.progress_noise = dice.LogBetween(0.001, 0.3);
  if (dice.Happens(0.7)) {
    signals.progress = [=](int module, double part) { return (module == 0 ? first : 1) * (part < change ? 1 : after); };
  }
  const double decay = dice.Between(2, 40), rise = dice.Happens(0.3) ? dice.Between(1, 8) : 0;
  if (dice.Happens(0.85)) {
    signals.plasticity = [=](int module, double part) {
      return 0.01 + std::exp(-decay * part / (module + 1)) + rise * part * part;
    };
  }
  return signals;
}

// Plays a training to the policy and writes down what it was told.
class Recorder {
 public:
  Recorder(Dice& dice, const Job& job, Policy& policy, std::ostream& out, const std::function<double(double)>& schedule)
      : dice_(dice),
        job_(job),
        policy_(policy),
        out_(out),
        schedule_(schedule),
        signals_(RandomSignals(dice, job.shape.modules, schedule)),
        gradients_(dice.Whole(0, 1 << 30), Parts(dice, job.shape.ranks), dice.Whole(30, 200)),
        measuring_cost_(dice.LogBetween(1e-4, 0.2)),
        true_part_(dice.Between(0.1, 1.5)),
        reads_frozen_(dice.Happens(0.9)),
        zero_rate_until_(dice.Happens(0.12) ? dice.Between(0.1, 1.2) : 0) {}

  void Run() {
    const int64_t tick = std::max<int64_t>(1, job_.steps / dice_.Whole(60, 250));
    std::vector<int64_t> meddling;
    if (dice_.Happens(0.4)) {
      for (int i = dice_.Whole(1, 3); i > 0; --i) meddling.push_back(dice_.Whole(1, static_cast<int>(job_.steps)));
    }
    const bool goes_back = dice_.Happens(0.1);
    out_ << FormatJob(job_.shape) << "\n";
    int64_t step = job_.shape.first_step;
    if (step > 0) Adopt(step);
    while (++step <= job_.steps) {
      if (std::find(meddling.begin(), meddling.end(), step) != meddling.end()) {
        meddling.erase(std::find(meddling.begin(), meddling.end(), step));
        if (goes_back && job_.shape.first_step == 0) step = std::max<int64_t>(1, step - dice_.Whole(1, 300));
        Adopt(step);
      }
      Step(step);
      if (step % tick == 0) Tick(step);
    }
  }

 private:
  static int Parts(Dice& dice, int ranks) { return ranks > 1 ? ranks : dice.Whole(1, 3); }
  double PartOf(int64_t step) const { return static_cast<double>(step) / static_cast<double>(job_.steps); }

  void Adopt(int64_t step) {
    const int prefix = dice_.Whole(0, job_.shape.modules - 1);
    out_ << FormatAdoption(step, prefix) << "\n";
    policy_.Adopt(step, prefix);
  }

  void Observe(Observation observation) {
    out_ << FormatObservation(observation) << "\n";
    policy_.Observe(observation);
  }

  void Step(int64_t step) {
    const auto wanted = policy_.gradient_monitoring();
    const bool can_read = wanted && (reads_frozen_ || wanted->first_module >= policy_.frozen_prefix());
    if (can_read && signals_.snr && step % wanted->interval_steps == 0) {
      std::vector<double> snrs;
      for (int module = wanted->first_module; module < job_.shape.modules; ++module) {
        snrs.push_back(signals_.snr(module, PartOf(step)));
      }
      Observation observation;
      observation.step = step;
      observation.gradients = gradients_.Reading(step, wanted->first_module, snrs);
      for (int module = wanted->first_module; signals_.progress && module < job_.shape.modules; ++module) {
        observation.gradients->progress.push_back(signals_.progress(module, PartOf(step)) +
                                                  signals_.progress_noise * dice_.Noise());
      }
      measuring_ += 0.1 * measuring_cost_;
      Observe(observation);
    }
    const auto monitoring = policy_.monitoring();
    if (monitoring && signals_.plasticity && step % monitoring->interval_steps == 0) {
      Observation observation;
      observation.step = step;
      observation.module = monitoring->module;
      observation.plasticity = signals_.plasticity(monitoring->module, PartOf(step)) * std::exp(0.1 * dice_.Noise());
      measuring_ += 0.1 * measuring_cost_;
      Observe(observation);
    }
    if (policy_.wants_loss() && job_.shape.losses_reported) {
      Observation observation;
      observation.step = step;
      observation.loss = 1 + 3 * std::exp(-12 * PartOf(step)) + 0.1 * dice_.Noise();
      Observe(observation);
    }
  }

  void Tick(int64_t step) {
    Observation observation;
    observation.step = step;
    observation.learning_rate = schedule_(PartOf(step));
    if (zero_rate_until_ > 0) observation.zero_lr_prefix = PartOf(step) < zero_rate_until_ ? 1 : 0;
    const std::vector<double>& shares = job_.shape.step_shares;
    if (policy_.wants_account() && dice_.Happens(0.7)) {
      double share = 0;
      for (int i = 0; i < policy_.frozen_prefix() && !shares.empty(); ++i) share += shares[static_cast<size_t>(i)];
      const double frozen = 0.1 * (1 - std::min(0.95, share * true_part_));
      saved_ += (0.1 - frozen) * 5;
      observation.account = {saved_, measuring_, 0.1, policy_.frozen_prefix() > 0 ? frozen : 0,
                             policy_.frozen_prefix()};
    }
    Observe(observation);
  }

  Dice& dice_;
  const Job& job_;
  Policy& policy_;
  std::ostream& out_;
  const std::function<double(double)> schedule_;
  const Signals signals_;
  SimulatedGradients gradients_;
  const double measuring_cost_;  // cost of a reading, in steps
  const double true_part_;
  const bool reads_frozen_;  // whether the worker can look at what is frozen
  const double zero_rate_until_;
  double saved_ = 0;
  double measuring_ = 0;
};

// Whether there can be such a job: the constants of some fit no shape.
bool Record(uint64_t seed, const std::string& folder, const std::string& name, std::ostream& jobs) {
  Dice dice(seed);
  const auto schedule = RandomSchedule(dice);
  const Job job = RandomJob(dice, schedule);
  v1::PolicyConfig proto;
  const std::string json = absl::StrCat("{\"", job.policy, "\":", job.options, "}");
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &proto);
  if (!parsed.ok()) {
    std::cerr << json << ": " << parsed.message() << "\n";
    std::exit(1);
  }
  auto policy = MakePolicy(policy::FromProto(proto), job.shape);
  if (!policy.ok()) return false;
  std::ofstream out(absl::StrCat(folder, "/", name));
  Recorder(dice, job, **policy, out, schedule).Run();
  jobs << absl::StrFormat(R"({"file":"%s","policy":"%s","options":%s})", name, job.policy, job.options) << "\n";
  return true;
}

}  // namespace
}  // namespace egeria::controller

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: replay_corpus FOLDER [JOBS]\n";
    return 2;
  }
  const std::string folder = argv[1];
  const int wanted = argc > 2 ? std::atoi(argv[2]) : 1000;
  std::ofstream jobs(folder + "/jobs.jsonl");
  uint64_t seed = 0;
  for (int made = 0; made < wanted;) {
    made += egeria::controller::Record(++seed, folder, absl::StrFormat("%04d.jsonl", made), jobs);
  }
  return 0;
}

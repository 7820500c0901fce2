#include "worker/trainer/agreed_options.h"

#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "worker/commit/settings_exchange.h"
#include "worker/trainer/summary.h"

namespace egeria::trainer {
namespace {

constexpr std::chrono::minutes kLimit{5};

// How a rank is told what to freeze; nothing freezes unless this is the same on all ranks.
constexpr const char* kFollows = "--controller, --plans";

template <typename T>
std::string ToText(const T& value) {
  return nlohmann::json(value).dump();
}
template <typename T>
std::string ToText(const std::optional<T>& value) {
  return value.has_value() ? ToText(*value) : "null";
}

template <typename T>
void Assign(const nlohmann::json& json, T* value) {
  *value = json.get<T>();
}
template <typename T>
void Assign(const nlohmann::json& json, std::optional<T>* value) {
  *value = json.is_null() ? std::nullopt : std::optional<T>(json.get<T>());
}

// Calls visit(flag, field) for each option in which the ranks must not differ.
template <typename Visit>
void ForEachShared(Options* o, Visit visit) {
  visit("--task", &o->task);
  visit("--train-samples", &o->train_samples);
  visit("--validation-samples", &o->validation_samples);
  visit("--epochs", &o->epochs);
  visit("--batch-size", &o->batch_size);
  visit("--lr", &o->learning_rate);
  visit("--momentum", &o->momentum);
  visit("--weight-decay", &o->weight_decay);
  visit("--schedule", &o->schedule);
  visit("--lr-milestones", &o->milestones);
  visit("--lr-gamma", &o->gamma);
  visit("--warmup-steps", &o->warmup_steps);
  visit("--seed", &o->seed);
  visit("--stop-after", &o->stop_after);
  visit("--stop-on-signal", &o->stop_on_signal);
  visit("--evaluate-every", &o->evaluate_every);
  visit("--augment", &o->augment);
  visit("--modules", &o->module_patterns);
  visit("--freeze-first", &o->freeze_first);
  visit("--policy", &o->policy);
  visit("--policy-json", &o->policy_json);
  visit("--interval", &o->interval);
  visit("--window", &o->window);
  visit("--tolerance", &o->tolerance);
  visit("--probe-batch", &o->probe_batch);
  visit("--bootstrap", &o->bootstrap);
  visit("--freeze-at", &o->freeze_at);
  visit("--budget", &o->budget);
  visit("--reinvest", &o->reinvest);
  visit("the saving of --reinvest", &o->reinvest_saving);
  visit("--observe", &o->observe);
  visit("--on-divergence", &o->on_divergence);
  visit("--frozen-forward", &o->frozen_forward);
  visit("--checkpoint", &o->checkpoint);
  visit("--checkpoint-every", &o->checkpoint_every);
  visit("--resume", &o->resume);
}

// The plans themselves, as their file may be another one on each rank.
std::string WhatIsFollowed(const Options& options) {
  if (!options.controller.empty()) return "a controller";
  if (options.plans.empty()) return "no controller";
  const absl::StatusOr<std::vector<PlannedSwitch>> plans = ReadPlans(options.plans);
  if (!plans.ok()) return std::string(plans.status().message());
  std::string text = "the plans";
  for (const PlannedSwitch& plan : *plans) absl::StrAppend(&text, " ", plan.step, ":", plan.frozen_prefix);
  return text;
}

worker::RankSettings SettingsOf(Options options) {
  worker::RankSettings settings;
  settings.host = worker::NodeName();
  settings.values[kFollows] = WhatIsFollowed(options);
  settings.values[worker::kControllerAddress] = options.controller;
  ForEachShared(&options, [&settings](const char* flag, auto* field) { settings.values[flag] = ToText(*field); });
  return settings;
}

void TrainPlainly(Options* options) {
  options->controller.clear();
  options->plans.clear();
  options->cache.clear();
  options->policy = "none";
  options->policy_json.clear();
  options->freeze_at.clear();
  options->observe = false;
  options->reinvest = options->reinvest && options->reinvest_saving > 0;
}

}  // namespace

absl::Status AgreeOnOptions(const worker::GroupMember& member, Options* options) {
  if (member.world_size == 1) return absl::OkStatus();
  worker::SettingsExchange exchange(member, "options");
  EGERIA_RETURN_IF_ERROR(exchange.Post(SettingsOf(*options)));
  std::vector<int> ranks(member.world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  EGERIA_ASSIGN_OR_RETURN(const std::vector<worker::RankSettings> settings, exchange.Finish(ranks, {nullptr, kLimit}));

  bool plain = false;
  for (const worker::SettingDifference& difference : worker::DifferencesFromFirst(settings, ranks)) {
    const bool about_freezing = difference.setting == kFollows;
    plain = plain || about_freezing;
    if (member.rank != 0 && member.rank != difference.rank) continue;
    LogWarning("[SETTINGS_DIFFER] ", worker::ToString(difference), "; ",
               about_freezing ? "all ranks train without freezing: give all of them the same controller or plans"
               : difference.setting == worker::kControllerAddress ? "the ranks of a node take the first one's"
                                                                  : "all ranks take rank 0's");
  }
  const std::map<std::string, std::string>& first = settings.front().values;
  ForEachShared(options, [&first](const char* flag, auto* field) {
    if (const auto found = first.find(flag); found != first.end()) Assign(nlohmann::json::parse(found->second), field);
  });
  options->controller = worker::AgreedAddress(settings, member.rank);
  if (options->observe) options->cache.clear();
  if (plain) TrainPlainly(options);
  return absl::OkStatus();
}

}  // namespace egeria::trainer

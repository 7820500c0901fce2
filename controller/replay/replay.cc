#include "controller/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace egeria::controller {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

template <typename... Args>
absl::Status BadLine(int64_t line, const Args&... message) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_RECORDING", "line ", line, ": ", message...);
}

absl::StatusOr<json> ParseObject(int64_t line, absl::string_view text) {
  json value;
  try {
    value = json::parse(text.begin(), text.end());
  } catch (const json::parse_error& error) {
    return BadLine(line, "not JSON from character ", error.byte,
                   " on: write one object a line, and null for a missing number");
  } catch (const json::exception&) {
    return BadLine(line, "a number is out of range: write null for a missing number");
  }
  if (!value.is_object()) {
    return BadLine(line, "a JSON ", value.type_name(), ": write an object such as {\"step\":10,\"plasticity\":0.1}");
  }
  return value;
}

// Returns the whole number under `key`; empty where it is absent or null.
absl::StatusOr<std::optional<int64_t>> WholeNumber(int64_t line, const json& object, const char* key, int64_t max) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  if (found->is_number_float()) {  // 3.0, as tools write it that know only one kind of number
    const double value = found->get<double>();
    constexpr double kMaxExact = 9007199254740992.0;  // 2^53
    if (value >= 0 && value <= std::min(kMaxExact, static_cast<double>(max)) && value == std::floor(value)) {
      return static_cast<int64_t>(value);
    }
  } else if (found->is_number_unsigned() && found->get<uint64_t>() <= static_cast<uint64_t>(max)) {
    return static_cast<int64_t>(found->get<uint64_t>());
  }
  return BadLine(line, "\"", key, "\" is ", found->dump(-1, ' ', false, json::error_handler_t::replace),
                 ": write a whole number from 0 to ", max);
}

absl::StatusOr<std::optional<double>> Number(int64_t line, const json& value, const char* key) {
  if (value.is_null()) return std::nullopt;
  if (!value.is_number()) {
    return BadLine(line, "\"", key, "\" holds ", value.dump(-1, ' ', false, json::error_handler_t::replace),
                   ": write a number, or null where it is missing");
  }
  return value.get<double>();
}

absl::StatusOr<std::optional<double>> NumberAt(int64_t line, const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return std::nullopt;
  return Number(line, *found, key);
}

absl::Status ParsePlasticity(int64_t line, const json& object, Recorded& recorded) {
  const auto found = object.find("plasticity");
  if (found == object.end() || !found->is_array()) {
    EGERIA_ASSIGN_OR_RETURN(recorded.observation.plasticity, NumberAt(line, object, "plasticity"));
    return absl::OkStatus();
  }
  if (found->empty()) {
    return BadLine(line, "\"plasticity\" is an empty array: write one number or null per module");
  }
  for (const json& element : *found) {
    EGERIA_ASSIGN_OR_RETURN(std::optional<double> value, Number(line, element, "plasticity"));
    recorded.plasticity_by_module.push_back(value);
  }
  return absl::OkStatus();
}

// Returns the numbers of an array under `key`, whose entries are finite and at least `min`; none where it is absent.
absl::StatusOr<std::vector<double>> Numbers(int64_t line, const json& object, const char* key, double min = 0) {
  std::vector<double> values;
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return values;
  for (const json& element : *found) {
    if (!found->is_array() || !element.is_number() || !(element.get<double>() >= min)) {
      return BadLine(line, "\"", key, "\" is no array of numbers", min == 0 ? " from 0 on" : "");
    }
    values.push_back(element.get<double>());
  }
  return values;
}

absl::StatusOr<policy::GradientReading> ParseGradients(int64_t line, int64_t step, const json& object) {
  constexpr int64_t kMaxParts = 65'536, kMaxModules = 512;
  if (!object.is_object()) return BadLine(line, "\"gradients\" is no object");
  policy::GradientReading reading;
  EGERIA_ASSIGN_OR_RETURN(const std::optional<int64_t> of_step,
                          WholeNumber(line, object, "step", std::numeric_limits<int64_t>::max()));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<int64_t> first, WholeNumber(line, object, "first_module", kMaxModules));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<int64_t> parts, WholeNumber(line, object, "parts", kMaxParts));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<int64_t> samples,
                          WholeNumber(line, object, "samples", std::numeric_limits<int64_t>::max()));
  EGERIA_ASSIGN_OR_RETURN(reading.mean_of_squares, Numbers(line, object, "mean_of_squares"));
  EGERIA_ASSIGN_OR_RETURN(reading.square_of_mean,
                          Numbers(line, object, "square_of_mean", std::numeric_limits<double>::lowest()));
  EGERIA_ASSIGN_OR_RETURN(reading.progress, Numbers(line, object, "progress", std::numeric_limits<double>::lowest()));
  reading.step = of_step.value_or(step);
  reading.first_module = static_cast<int>(first.value_or(0));
  reading.parts = static_cast<int>(parts.value_or(1));
  reading.samples = samples.value_or(0);
  if (reading.parts < 1 || reading.mean_of_squares.empty() ||
      reading.mean_of_squares.size() != reading.square_of_mean.size()) {
    return BadLine(line,
                   "\"gradients\" needs \"parts\" from 1 on, and \"mean_of_squares\" and \"square_of_mean\" "
                   "with one number a module each");
  }
  if (!reading.progress.empty() && reading.progress.size() != reading.square_of_mean.size()) {
    return BadLine(line, "\"progress\" needs one number a module, as \"square_of_mean\" has");
  }
  return reading;
}

absl::StatusOr<policy::Account> ParseAccount(int64_t line, const json& object) {
  if (!object.is_object()) return BadLine(line, "\"account\" is no object");
  EGERIA_ASSIGN_OR_RETURN(const std::optional<double> saved, NumberAt(line, object, "saved_seconds"));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<double> measuring, NumberAt(line, object, "measuring_seconds"));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<double> active, NumberAt(line, object, "active_step_seconds"));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<double> frozen, NumberAt(line, object, "frozen_step_seconds"));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<int64_t> prefix,
                          WholeNumber(line, object, "frozen_prefix", std::numeric_limits<int>::max()));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<double> switching, NumberAt(line, object, "switch_seconds"));
  return policy::Account{saved.value_or(0),
                         measuring.value_or(0),
                         active.value_or(0),
                         frozen.value_or(0),
                         static_cast<int>(prefix.value_or(0)),
                         switching.value_or(0)};
}

absl::StatusOr<policy::JobShape> ParseJob(int64_t line, const json& object) {
  constexpr int64_t kMaxSteps = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMaxOfInt = std::numeric_limits<int>::max();
  if (!object.is_object()) return BadLine(line, "\"job\" is no object");
  policy::JobShape shape;
  EGERIA_ASSIGN_OR_RETURN(const std::optional<int64_t> modules, WholeNumber(line, object, "modules", kMaxOfInt));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<int64_t> ranks, WholeNumber(line, object, "ranks", kMaxOfInt));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<int64_t> total, WholeNumber(line, object, "total_steps", kMaxSteps));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<int64_t> first, WholeNumber(line, object, "first_step", kMaxSteps));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<double> budget, NumberAt(line, object, "budget"));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<double> saved_before, NumberAt(line, object, "saved_before"));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<double> rate_before, NumberAt(line, object, "mean_rate_before"));
  EGERIA_ASSIGN_OR_RETURN(const std::optional<int64_t> tables,
                          WholeNumber(line, object, "embedding_prefix", kMaxOfInt));
  EGERIA_ASSIGN_OR_RETURN(shape.step_shares, Numbers(line, object, "step_shares"));
  EGERIA_ASSIGN_OR_RETURN(shape.planned_learning_rates, Numbers(line, object, "planned_learning_rates"));
  EGERIA_ASSIGN_OR_RETURN(const std::vector<double> counts, Numbers(line, object, "parameter_counts"));
  for (const double count : counts) shape.parameter_counts.push_back(static_cast<int64_t>(std::min(count, 1e18)));
  shape.modules = static_cast<int>(modules.value_or(0));
  shape.ranks = static_cast<int>(ranks.value_or(1));
  shape.total_steps = total.value_or(0);
  shape.first_step = first.value_or(0);
  shape.budget = budget.value_or(0);
  shape.saved_before = saved_before.value_or(0);
  shape.mean_rate_before = rate_before.value_or(0);
  shape.embedding_prefix = static_cast<int>(tables.value_or(0));
  const auto losses = object.find("losses_reported");
  shape.losses_reported = losses == object.end() || !losses->is_boolean() || losses->get<bool>();
  return shape;
}

absl::StatusOr<Recorded> ParseRecorded(int64_t line, const json& object) {
  constexpr int64_t kMaxModule = std::numeric_limits<int>::max();
  Recorded recorded;
  recorded.line = line;
  EGERIA_ASSIGN_OR_RETURN(std::optional<int64_t> step,
                          WholeNumber(line, object, "step", std::numeric_limits<int64_t>::max()));
  if (!step) return BadLine(line, "no \"step\": every line needs one");
  recorded.observation.step = *step;
  EGERIA_ASSIGN_OR_RETURN(recorded.observation.module, WholeNumber(line, object, "module", kMaxModule));
  EGERIA_ASSIGN_OR_RETURN(recorded.observation.loss, NumberAt(line, object, "loss"));
  EGERIA_ASSIGN_OR_RETURN(recorded.observation.learning_rate, NumberAt(line, object, "lr"));
  EGERIA_ASSIGN_OR_RETURN(recorded.observation.zero_lr_prefix, WholeNumber(line, object, "zero_lr_prefix", kMaxModule));
  EGERIA_ASSIGN_OR_RETURN(recorded.observation.frozen_by_script,
                          WholeNumber(line, object, "frozen_by_script", kMaxModule));
  EGERIA_ASSIGN_OR_RETURN(recorded.adopted_prefix, WholeNumber(line, object, "adopt", kMaxModule));
  if (const auto found = object.find("gradients"); found != object.end() && !found->is_null()) {
    EGERIA_ASSIGN_OR_RETURN(recorded.observation.gradients, ParseGradients(line, *step, *found));
  }
  if (const auto found = object.find("account"); found != object.end() && !found->is_null()) {
    EGERIA_ASSIGN_OR_RETURN(recorded.observation.account, ParseAccount(line, *found));
  }
  EGERIA_RETURN_IF_ERROR(ParsePlasticity(line, object, recorded));
  return recorded;
}

absl::Status CheckAgainstJob(const Recorded& recorded, int modules) {
  const size_t values = recorded.plasticity_by_module.size();
  if (values > 0 && values != static_cast<size_t>(modules)) {
    return BadLine(recorded.line, "\"plasticity\" has ", values, " values, but the job has ", modules,
                   " modules: give one value or null for each");
  }
  if (values == 0 && recorded.observation.module.value_or(0) >= modules) {
    return BadLine(recorded.line, "module ", *recorded.observation.module, ", but the job has modules 0 to ",
                   modules - 1, ": give the right number of modules");
  }
  if (const auto& gradients = recorded.observation.gradients) {
    const size_t told = gradients->mean_of_squares.size() + static_cast<size_t>(gradients->first_module);
    if (told != static_cast<size_t>(modules)) {
      return BadLine(recorded.line, "\"gradients\" is of ", told, " modules, but the job has modules 0 to ",
                     modules - 1, ": give the right number of modules");
    }
  }
  if (recorded.adopted_prefix.value_or(0) >= modules) {
    return BadLine(recorded.line, "\"adopt\" is ", *recorded.adopted_prefix, ", but at most ", modules - 1, " of ",
                   modules, " modules can be frozen");
  }
  return absl::OkStatus();
}

void PutIfFinite(ordered_json& object, const char* key, const std::optional<double>& value) {
  if (value && std::isfinite(*value)) object[key] = *value;
}

std::string Dump(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// Says whether the line holds more than somebody's prefix.
bool HasObservation(const Recorded& recorded) {
  const policy::Observation& seen = recorded.observation;
  return seen.plasticity || seen.loss || seen.learning_rate || seen.zero_lr_prefix || seen.frozen_by_script ||
         seen.gradients || seen.account || !recorded.plasticity_by_module.empty();
}

}  // namespace

absl::StatusOr<std::optional<Recorded>> RecordingParser::ParseLine(absl::string_view text) {
  ++line_;
  text = absl::StripAsciiWhitespace(text);
  if (text.empty()) return std::nullopt;
  EGERIA_ASSIGN_OR_RETURN(const json object, ParseObject(line_, text));
  if (const auto job = object.find("job"); job != object.end()) {
    EGERIA_ASSIGN_OR_RETURN(job_, ParseJob(line_, *job));
    return std::nullopt;
  }
  EGERIA_ASSIGN_OR_RETURN(Recorded recorded, ParseRecorded(line_, object));
  const int64_t step = recorded.observation.step;
  if (step < step_ && !recorded.adopted_prefix) {
    return BadLine(line_, "step ", step, " comes after step ", step_, ": sort the lines by step");
  }
  const int length = static_cast<int>(recorded.plasticity_by_module.size());
  if (length > 0 && array_length_ > 0 && length != array_length_) {
    return BadLine(line_, "\"plasticity\" has ", length, " values, but ", array_length_,
                   " in a line before: give one value or null per module in every array");
  }
  for (const auto& [key, value] : object.items()) {
    if (key != "step" && key != "module" && key != "plasticity" && key != "loss" && key != "lr" &&
        key != "zero_lr_prefix" && key != "frozen_by_script" && key != "adopt" && key != "gradients" &&
        key != "account") {
      unknown_keys_.insert(key);
    }
  }
  step_ = step;
  if (length > 0) array_length_ = length;
  return recorded;
}

absl::StatusOr<std::vector<policy::Decision>> Replay(const std::vector<Recorded>& recording, int modules,
                                                     policy::Policy& policy) {
  std::vector<policy::Decision> decisions;
  const auto observe = [&](const policy::Observation& observation) {
    if (std::optional<policy::Decision> decision = policy.Observe(observation))
      decisions.push_back(*std::move(decision));
  };
  for (const Recorded& recorded : recording) {
    EGERIA_RETURN_IF_ERROR(CheckAgainstJob(recorded, modules));
    if (recorded.adopted_prefix) {
      policy.Adopt(recorded.observation.step, *recorded.adopted_prefix);
      if (!HasObservation(recorded)) continue;  // an adoption alone is none
    }
    observe(recorded.observation);
    if (recorded.plasticity_by_module.empty()) continue;
    // The frontmost module is known only after the learning rate and the loss of the line. So those went first, which
    // is the order in which one observation is evaluated too.
    policy::Observation reading;
    reading.step = recorded.observation.step;
    reading.module = policy.frozen_prefix();
    reading.plasticity = recorded.plasticity_by_module[static_cast<size_t>(policy.frozen_prefix())];
    observe(reading);
  }
  return decisions;
}

std::string FormatObservation(const policy::Observation& observation) {
  ordered_json object;
  object["step"] = observation.step;
  if (observation.module) object["module"] = *observation.module;
  PutIfFinite(object, "plasticity", observation.plasticity);
  PutIfFinite(object, "loss", observation.loss);
  PutIfFinite(object, "lr", observation.learning_rate);
  if (observation.zero_lr_prefix) object["zero_lr_prefix"] = *observation.zero_lr_prefix;
  if (observation.frozen_by_script) object["frozen_by_script"] = *observation.frozen_by_script;
  if (const auto& gradients = observation.gradients) {
    object["gradients"] = ordered_json{{"step", gradients->step},
                                       {"first_module", gradients->first_module},
                                       {"parts", gradients->parts},
                                       {"samples", gradients->samples},
                                       {"mean_of_squares", gradients->mean_of_squares},
                                       {"square_of_mean", gradients->square_of_mean}};
    if (!gradients->progress.empty()) object["gradients"]["progress"] = gradients->progress;
  }
  if (const auto& account = observation.account) {
    object["account"] = ordered_json{{"saved_seconds", account->saved_seconds},
                                     {"measuring_seconds", account->measuring_seconds},
                                     {"active_step_seconds", account->active_step_seconds},
                                     {"frozen_step_seconds", account->frozen_step_seconds},
                                     {"frozen_prefix", account->frozen_prefix},
                                     {"switch_seconds", account->switch_seconds}};
  }
  return Dump(object);
}

std::string FormatJob(const policy::JobShape& shape) {
  ordered_json job{{"modules", shape.modules},
                   {"ranks", shape.ranks},
                   {"total_steps", shape.total_steps},
                   {"first_step", shape.first_step},
                   {"losses_reported", shape.losses_reported}};
  if (!shape.step_shares.empty()) job["step_shares"] = shape.step_shares;
  if (!shape.parameter_counts.empty()) job["parameter_counts"] = shape.parameter_counts;
  if (!shape.planned_learning_rates.empty()) job["planned_learning_rates"] = shape.planned_learning_rates;
  if (shape.budget > 0) job["budget"] = shape.budget;
  if (shape.saved_before > 0) job["saved_before"] = shape.saved_before;
  if (shape.mean_rate_before > 0) job["mean_rate_before"] = shape.mean_rate_before;
  if (shape.embedding_prefix > 0) job["embedding_prefix"] = shape.embedding_prefix;
  return Dump(ordered_json{{"job", job}});
}

std::string FormatAdoption(int64_t step, int frozen_prefix) {
  return Dump(ordered_json{{"step", step}, {"adopt", frozen_prefix}});
}

std::string FormatDecision(const policy::Decision& decision) {
  ordered_json object;
  object["step"] = decision.step;
  object["action"] = policy::ActionName(decision.action);
  object["frozen_prefix"] = decision.frozen_prefix;
  object["reason"] = decision.reason;
  return Dump(object);
}

}  // namespace egeria::controller

#include "controller/policy/replay.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace egeria::policy {
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
    return BadLine(line, "a JSON ", value.type_name(),
                   ": write an object such as {\"step\":10,\"plasticity\":0.1}");
  }
  return value;
}

// The whole number under `key`; empty where it is absent or null.
absl::StatusOr<std::optional<int64_t>> WholeNumber(int64_t line, const json& object, const char* key,
                                                   int64_t most) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  if (found->is_number_float()) {  // 3.0, as tools write it that know only one kind of number
    const double value = found->get<double>();
    constexpr double kMostExact = 9007199254740992.0;  // 2^53
    if (value >= 0 && value <= std::min(kMostExact, static_cast<double>(most)) && value == std::floor(value)) {
      return static_cast<int64_t>(value);
    }
  } else if (found->is_number_unsigned() && found->get<uint64_t>() <= static_cast<uint64_t>(most)) {
    return static_cast<int64_t>(found->get<uint64_t>());
  }
  return BadLine(line, "\"", key, "\" is ", found->dump(-1, ' ', false, json::error_handler_t::replace),
                 ": write a whole number from 0 to ", most);
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
  EGERIA_ASSIGN_OR_RETURN(recorded.adopted_prefix, WholeNumber(line, object, "adopt", kMaxModule));
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
  if (recorded.adopted_prefix.value_or(0) >= modules) {
    return BadLine(recorded.line, "\"adopt\" is ", *recorded.adopted_prefix, ", but at most ", modules - 1,
                   " of ", modules, " modules can be frozen");
  }
  return absl::OkStatus();
}

void PutIfFinite(ordered_json& object, const char* key, const std::optional<double>& value) {
  if (value && std::isfinite(*value)) object[key] = *value;
}

std::string Dump(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<std::optional<Recorded>> RecordingParser::ParseLine(absl::string_view text) {
  ++line_;
  text = absl::StripAsciiWhitespace(text);
  if (text.empty()) return std::nullopt;
  EGERIA_ASSIGN_OR_RETURN(const json object, ParseObject(line_, text));
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
        key != "adopt") {
      unknown_keys_.insert(key);
    }
  }
  step_ = step;
  if (length > 0) array_length_ = length;
  return recorded;
}

absl::StatusOr<std::vector<Decision>> Replay(const std::vector<Recorded>& recording, int modules,
                                             Policy& policy) {
  std::vector<Decision> decisions;
  const auto observe = [&](const Observation& observation) {
    if (std::optional<Decision> decision = policy.Observe(observation)) decisions.push_back(*std::move(decision));
  };
  for (const Recorded& recorded : recording) {
    EGERIA_RETURN_IF_ERROR(CheckAgainstJob(recorded, modules));
    if (recorded.adopted_prefix) policy.Adopt(recorded.observation.step, *recorded.adopted_prefix);
    observe(recorded.observation);
    if (recorded.plasticity_by_module.empty()) continue;
    // Which module is frontmost is known only after the learning rate and the loss of the line: so those
    // went first, which is the order in which one observation is evaluated too.
    Observation reading;
    reading.step = recorded.observation.step;
    reading.module = policy.frozen_prefix();
    reading.plasticity = recorded.plasticity_by_module[static_cast<size_t>(policy.frozen_prefix())];
    observe(reading);
  }
  return decisions;
}

std::string FormatObservation(const Observation& observation) {
  ordered_json object;
  object["step"] = observation.step;
  if (observation.module) object["module"] = *observation.module;
  PutIfFinite(object, "plasticity", observation.plasticity);
  PutIfFinite(object, "loss", observation.loss);
  PutIfFinite(object, "lr", observation.learning_rate);
  return Dump(object);
}

std::string FormatAdoption(int64_t step, int frozen_prefix) {
  return Dump(ordered_json{{"step", step}, {"adopt", frozen_prefix}});
}

std::string FormatDecision(const Decision& decision) {
  ordered_json object;
  object["step"] = decision.step;
  object["action"] = ActionName(decision.action);
  object["frozen_prefix"] = decision.frozen_prefix;
  object["reason"] = decision.reason;
  return Dump(object);
}

}  // namespace egeria::policy

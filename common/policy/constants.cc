#include "common/policy/constants.h"

#include <cmath>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace egeria::policy {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMaxEntries = 1024;

template <typename... Args>
absl::Status BadPolicy(const Args&... message) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_POLICY", message...);
}

template <typename T>
constexpr bool kIsNumber = std::is_same_v<T, int> || std::is_same_v<T, double>;

std::string Number(double value) { return absl::StrFormat("%.10g", value); }

absl::Status CheckValue(const Constant& constant, const ConstantValue& value) {
  const auto bad = [&constant](const auto& found) {
    return BadPolicy(constant.name, " is ", found, ", must be ", constant.range.Text());
  };
  return std::visit(
      [&](const auto& held) -> absl::Status {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (kIsNumber<Held>) {
          if (held == 0 && constant.is_derived()) return absl::OkStatus();
          return constant.range.Holds(held) ? absl::OkStatus() : bad(held);
        } else if constexpr (std::is_same_v<Held, std::vector<int64_t>>) {
          if (held.size() > kMaxEntries) {
            return BadPolicy("there are ", held.size(), " ", constant.name, ", at most ", kMaxEntries);
          }
          for (const int64_t entry : held) {
            if (!constant.range.Holds(static_cast<double>(entry))) return bad(entry);
          }
        }
        return absl::OkStatus();
      },
      value);
}

// What a value of a JSON document must be, in words.
std::string Wanted(const Constant& constant) {
  return std::visit(
      [&constant](const auto& held) -> std::string {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, bool>) return "true or false";
        if constexpr (std::is_same_v<Held, int>) return absl::StrCat("an integer, ", constant.range.Text());
        if constexpr (std::is_same_v<Held, double>) return absl::StrCat("a number, ", constant.range.Text());
        if constexpr (std::is_same_v<Held, std::vector<int64_t>>) {
          return absl::StrCat("a list of at most ", kMaxEntries, " integers, each ", constant.range.Text());
        }
        return "a list of {\"fraction\": 0.5, \"frozen_prefix\": 2}";
      },
      constant.default_value);
}

bool IsInteger(const json& value) { return value.is_number_integer() || value.is_number_unsigned(); }

bool IsEntry(const json& value) {
  return value.is_object() && value.size() == 2 && value.contains("fraction") && value.contains("frozen_prefix") &&
         value["fraction"].is_number() && value["fraction"] >= 0 && value["fraction"] <= 1 &&
         IsInteger(value["frozen_prefix"]) && value["frozen_prefix"] >= 0;
}

bool Fits(const Constant& constant, const json& value) {
  const auto in_range = [&constant](const json& number) { return constant.range.Holds(number.get<double>()); };
  return std::visit(
      [&](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, bool>) return value.is_boolean();
        if constexpr (std::is_same_v<Held, int>) return IsInteger(value) && in_range(value);
        if constexpr (std::is_same_v<Held, double>) return value.is_number() && in_range(value);
        if (!value.is_array() || value.size() > kMaxEntries) return false;
        constexpr bool kSteps = std::is_same_v<Held, std::vector<int64_t>>;
        for (const json& entry : value) {
          if (!(kSteps ? IsInteger(entry) && in_range(entry) : IsEntry(entry))) return false;
        }
        return kSteps || !value.empty();
      },
      constant.default_value);
}

}  // namespace

bool Range::Holds(double value) const {
  if (value == 0 && zero[0] != '\0') return true;
  if (ends == Ends::kBoth) return value >= min && value <= max;
  return value > min && (ends == Ends::kOverMinUnderMax ? value < max : value <= max);
}

std::string Range::Text() const {
  const std::string numbers =
      ends == Ends::kBoth
          ? absl::StrCat(Number(min), " to ", Number(max))
          : absl::StrCat("over ", Number(min), " and ", ends == Ends::kOverMin ? "at most " : "under ", Number(max));
  return zero[0] == '\0' ? numbers : absl::StrCat(numbers, ", or 0 for ", zero);
}

std::string Constant::DefaultText() const {
  if (is_derived()) return derived;
  if (const bool* flag = std::get_if<bool>(&default_value)) return *flag ? "true" : "false";
  if (const int* whole = std::get_if<int>(&default_value)) return absl::StrCat(*whole);
  if (const double* number = std::get_if<double>(&default_value)) return Number(*number);
  return "none";
}

const PolicyKind& KindOf(const PolicyConfig& config) { return PolicyKinds()[config.index()]; }

const PolicyKind* FindKind(absl::string_view name) {
  for (const PolicyKind& kind : PolicyKinds()) {
    if (name == kind.name) return &kind;
  }
  return nullptr;
}

const Constant* FindConstant(const PolicyKind& kind, absl::string_view name) {
  for (const Constant& constant : kind.constants) {
    if (name == constant.name) return &constant;
  }
  return nullptr;
}

absl::Status CheckConstants(const PolicyConfig& config) {
  for (const Constant& constant : KindOf(config).constants) {
    EGERIA_RETURN_IF_ERROR(CheckValue(constant, constant.get(config)));
  }
  return absl::OkStatus();
}

std::optional<std::string> Misfit(const Constant& constant, absl::string_view json_value) {
  const json value = json::parse(json_value, nullptr, /*allow_exceptions=*/false);
  return Fits(constant, value) ? std::nullopt : std::optional<std::string>(Wanted(constant));
}

std::string DescribePolicies() {
  ordered_json policies = ordered_json::array();
  for (const PolicyKind& kind : PolicyKinds()) {
    ordered_json constants = ordered_json::array();
    for (const Constant& constant : kind.constants) {
      const bool numbers = constant.range.min != constant.range.max;
      constants.push_back({{"name", constant.name},
                           {"sentence", constant.sentence},
                           {"unit", constant.unit},
                           {"range", numbers ? constant.range.Text() : ""},
                           {"default", constant.DefaultText()}});
    }
    policies.push_back({{"name", kind.name},
                        {"sentence", kind.sentence},
                        {"reads_plasticity", kind.reads_plasticity},
                        {"constants", constants}});
  }
  return policies.dump();
}

std::string PolicyHelp() {
  std::string text = "Policies and their constants, for --options:\n";
  for (const PolicyKind& kind : PolicyKinds()) {
    absl::StrAppend(&text, "  ", kind.name, ": ", kind.sentence, "\n");
    for (const Constant& constant : kind.constants) {
      const std::string unit = constant.unit[0] == '\0' ? "" : absl::StrCat(", ", constant.unit);
      absl::StrAppend(&text, "    ", constant.name, unit, ": ", constant.sentence, " (", constant.DefaultText(), ")\n");
    }
  }
  return text;
}

}  // namespace egeria::policy

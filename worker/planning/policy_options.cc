#include "worker/planning/policy_options.h"

#include <cstdint>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/policy/constants.h"
#include "nlohmann/json.hpp"

namespace egeria::worker {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using policy::Constant;
using policy::kMaxEntries;
using policy::PolicyKind;

// Says in words what a value of a JSON document must be.
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

std::string DescribePolicies() {
  ordered_json policies = ordered_json::array();
  for (const PolicyKind& kind : policy::PolicyKinds()) {
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
                        {"times_first_steps", kind.times_first_steps},
                        {"constants", constants}});
  }
  return policies.dump();
}

std::optional<std::string> Misfit(const std::string& policy, const std::string& constant,
                                  const std::string& value_json) {
  const PolicyKind* kind = policy::FindKind(policy);
  const Constant* found = kind == nullptr ? nullptr : policy::FindConstant(*kind, constant);
  if (found == nullptr) return "a constant that the policy has";
  const json value = json::parse(value_json, nullptr, /*allow_exceptions=*/false);
  return Fits(*found, value) ? std::nullopt : std::optional<std::string>(Wanted(*found));
}

}  // namespace egeria::worker

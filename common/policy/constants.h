#ifndef EGERIA_COMMON_POLICY_CONSTANTS_H_
#define EGERIA_COMMON_POLICY_CONSTANTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/policy/policy_config.h"

// Everything that is known of a policy and of its constants is declared once, in a row of a table. Range checks, the
// conversion to and from protobuf, `egeria replay --help`, Python's checks and the tables of docs/reference/policies.md
// all come from here.
namespace egeria::policy {

inline constexpr size_t kMaxEntries = 1024;  // in a constant that is a list

template <typename... Args>
absl::Status BadPolicy(const Args&... message) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_POLICY", message...);
}

using ConstantValue = std::variant<bool, int, double, std::vector<int64_t>, std::vector<ScheduleConfig::Entry>>;

// A range holds the values that a number may have, or each entry of a list.
struct Range {
  enum class Ends { kBoth, kOverMin, kOverMinUnderMax };  // the ends that belong to it

  double min = 0;
  double max = 0;
  Ends ends = Ends::kBoth;
  const char* zero = "";  // meaning of a 0 that lies outside, such as "never"

  bool Holds(double value) const;  // false for NaN
  std::string Text() const;        // "0 to 1", "over 0 and at most 1", "over 1 and at most 1000000, or 0 for never"
};

struct Constant {
  const char* name;      // the same in egeria.v1 and in options
  const char* sentence;  // its meaning
  const char* unit;      // such as "of the steps"; may be empty
  Range range;           // empty where it is true or false
  const char* derived;   // how the default follows from the job; empty where it is default_value
  ConstantValue default_value;
  std::function<ConstantValue(const PolicyConfig&)> get;
  std::function<void(PolicyConfig&, ConstantValue)> set;  // requires the type of default_value

  bool is_derived() const { return derived[0] != '\0'; }
  std::string DefaultText() const;
};

// Returns the constant of the policy whose config has that member, or is a Given that inherits it, at its default
// there. One with `derived` has the value 0 until Resolve() has worked it out, and 0 cannot be given for it.
template <typename Given = void, typename Base, typename Value>
Constant ConstantOf(const char* name, Value Base::* member, const char* sentence, const char* unit = "",
                    Range range = {}, const char* derived = "") {
  using Config = std::conditional_t<std::is_void_v<Given>, Base, Given>;
  return {name,
          sentence,
          unit,
          range,
          derived,
          Config().*member,
          [member](const PolicyConfig& config) { return ConstantValue(std::get<Config>(config).*member); },
          [member](PolicyConfig& config, ConstantValue value) {
            std::get<Config>(config).*member = std::get<Value>(std::move(value));
          }};
}

// A kind is all that there is to know of a policy but how it decides.
struct PolicyKind {
  const char* name;      // the same in egeria.v1.PolicyConfig
  const char* sentence;  // its grounds for a decision
  bool follows_a_clock;  // where the total of steps is known it freezes whatever it measures, or does not measure
  bool reads_plasticity;
  bool times_first_steps;                             // it freezes within the first steps, by what they took
  bool (*acts_at_steps)(const PolicyConfig& config);  // whether it acts on the mere passing of steps
  PolicyConfig defaults;
  std::vector<Constant> constants;
  absl::StatusOr<PolicyConfig> (*resolve)(const PolicyConfig& config, const JobShape& shape);
  std::unique_ptr<Policy> (*make)(const PolicyConfig& config, const JobShape& shape);
};

// Return every policy, in the order of PolicyConfig's alternatives; the policy of a config; and the one of that name,
// null where there is none.
const std::vector<PolicyKind>& PolicyKinds();
const PolicyKind& KindOf(const PolicyConfig& config);
const PolicyKind* FindKind(absl::string_view name);
// Returns the constant of that name; null where the policy has none.
const Constant* FindConstant(const PolicyKind& kind, absl::string_view name);

// Checks that the constants of a config lie in their ranges, whatever the job. A derived one may be 0.
// Errors: INVALID_ARGUMENT [BAD_POLICY] naming the constant and its range.
absl::Status CheckConstants(const PolicyConfig& config);

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_CONSTANTS_H_

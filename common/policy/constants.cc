#include "common/policy/constants.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace egeria::policy {
namespace {

std::string Number(double value) { return absl::StrFormat("%.10g", value); }

absl::Status CheckValue(const Constant& constant, const ConstantValue& value) {
  const auto bad = [&constant](const auto& found) {
    return BadPolicy(constant.name, " is ", found, ", must be ", constant.range.Text());
  };
  return std::visit(
      [&](const auto& held) -> absl::Status {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, int> || std::is_same_v<Held, double>) {
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

}  // namespace egeria::policy

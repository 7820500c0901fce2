#include "common/config/values.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace egeria::config {
namespace {

absl::Status Expected(const char* what, const Words& words) {
  if (words.size() != 1) return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", not a list"));
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", not '", words[0], "'"));
}

template <typename Number>
absl::Status ParseWhole(const Words& words, Number* value) {
  Number parsed = 0;
  if (words.size() != 1 || !absl::SimpleAtoi(words[0], &parsed)) return Expected("a whole number", words);
  *value = parsed;
  return absl::OkStatus();
}

constexpr std::pair<const char*, size_t> kUnits[] = {
    {"TiB", size_t{1} << 40}, {"GiB", size_t{1} << 30}, {"MiB", size_t{1} << 20}, {"KiB", size_t{1} << 10}};

}  // namespace

absl::Status Parse(const Words& words, bool* value) {
  if (words.size() != 1) return Expected("true or false", words);
  const std::string word = absl::AsciiStrToLower(words[0]);
  if (word == "true" || word == "yes" || word == "on" || word == "1") {
    *value = true;
  } else if (word == "false" || word == "no" || word == "off" || word == "0") {
    *value = false;
  } else {
    return Expected("true or false", words);
  }
  return absl::OkStatus();
}

absl::Status Parse(const Words& words, int* value) { return ParseWhole(words, value); }
absl::Status Parse(const Words& words, int64_t* value) { return ParseWhole(words, value); }

absl::Status Parse(const Words& words, double* value) {
  double parsed = 0;
  if (words.size() != 1 || !absl::SimpleAtod(words[0], &parsed) || !std::isfinite(parsed)) {
    return Expected("a number", words);
  }
  *value = parsed;
  return absl::OkStatus();
}

absl::Status Parse(const Words& words, std::string* value) {
  if (words.size() > 1) return Expected("one text", words);
  *value = words.empty() ? "" : words[0];
  return absl::OkStatus();
}

absl::Status Parse(const Words& words, absl::Duration* value) {
  constexpr char kWhat[] = "a duration such as 90s, 1h30m or 30d";
  if (words.size() != 1) return Expected(kWhat, words);
  absl::Duration parsed;
  double days = 0;
  if (absl::EndsWith(words[0], "d") && absl::SimpleAtod(words[0].substr(0, words[0].size() - 1), &days) &&
      std::isfinite(days)) {
    parsed = days * absl::Hours(24);
  } else if (!absl::ParseDuration(words[0], &parsed)) {
    return Expected(kWhat, words);
  }
  *value = parsed;
  return absl::OkStatus();
}

absl::Status Parse(const Words& words, ByteCount* value) {
  constexpr char kWhat[] = "a size such as 4GiB or 1000";
  if (words.size() != 1) return Expected(kWhat, words);
  std::string number = words[0];
  size_t unit = 1;
  for (const auto& [name, size] : kUnits) {
    if (!absl::EndsWith(number, name)) continue;
    number = std::string(absl::StripAsciiWhitespace(number.substr(0, number.size() - 3)));
    unit = size;
    break;
  }
  uint64_t parsed = 0;
  if (!absl::SimpleAtoi(number, &parsed) || parsed > std::numeric_limits<size_t>::max() / unit) {
    return Expected(kWhat, words);
  }
  value->value = parsed * unit;
  return absl::OkStatus();
}

absl::Status Parse(const Words& words, Part* value) {
  if (words.size() != 1) return Expected("a part such as 0.2 or 20%", words);
  absl::string_view number = words[0];
  const double unit = absl::ConsumeSuffix(&number, "%") ? 100 : 1;
  double parsed = 0;
  if (!absl::SimpleAtod(number, &parsed) || !(parsed >= 0 && parsed <= unit)) {
    return Expected("a part such as 0.2 or 20%", words);
  }
  value->value = parsed / unit;
  return absl::OkStatus();
}

absl::Status Parse(const Words& words, std::vector<std::string>* value) {
  *value = words;
  return absl::OkStatus();
}

absl::Status Parse(const Words& words, std::vector<int>* value) {
  std::vector<int> parsed;
  for (const std::string& word : words) {
    EGERIA_RETURN_IF_ERROR(Parse(Words{word}, &parsed.emplace_back()));
  }
  *value = std::move(parsed);
  return absl::OkStatus();
}

Words Format(bool value) { return {value ? "true" : "false"}; }
Words Format(int value) { return {absl::StrCat(value)}; }
Words Format(int64_t value) { return {absl::StrCat(value)}; }
Words Format(const std::string& value) { return {value}; }
Words Format(Part value) { return Format(value.value); }

Words Format(const std::vector<std::string>& value) { return value; }

Words Format(double value) {
  std::string text = absl::StrFormat("%.15g", value);
  if (std::strtod(text.c_str(), nullptr) != value) text = absl::StrFormat("%.17g", value);
  return {text};
}

Words Format(absl::Duration value) {
  const absl::Duration day = absl::Hours(24);
  if (value >= day && value == absl::Floor(value, day)) return {absl::StrCat(value / day, "d")};
  return {absl::FormatDuration(value)};
}

Words Format(ByteCount value) {
  for (const auto& [name, size] : kUnits) {
    if (value.value >= size && value.value % size == 0) return {absl::StrCat(value.value / size, name)};
  }
  return {absl::StrCat(value.value)};
}

Words Format(const std::vector<int>& value) {
  Words words;
  for (int number : value) words.push_back(absl::StrCat(number));
  return words;
}

}  // namespace egeria::config

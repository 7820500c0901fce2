#ifndef EGERIA_COMMON_CONFIG_VALUES_H_
#define EGERIA_COMMON_CONFIG_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

// The types that an option can have, each with its text form. A value comes as words: a scalar is one word, a
// list any number of them.
namespace egeria::config {

// A size; its text form takes KiB, MiB, GiB and TiB.
struct ByteCount {
  size_t value = 0;
  friend bool operator==(ByteCount, ByteCount) = default;
};

// A part of a whole, 0..1; its text form takes percents.
struct Part {
  double value = 0;
  friend bool operator==(Part, Part) = default;
};

using Words = std::vector<std::string>;

// Errors: INVALID_ARGUMENT saying what was expected.
absl::Status Parse(const Words& words, bool* value);  // true, false, yes, no, on, off
absl::Status Parse(const Words& words, int* value);
absl::Status Parse(const Words& words, int64_t* value);
absl::Status Parse(const Words& words, double* value);  // finite
absl::Status Parse(const Words& words, std::string* value);
absl::Status Parse(const Words& words, absl::Duration* value);  // 90s, 1h30m, 30d
absl::Status Parse(const Words& words, ByteCount* value);       // 4GiB, 1000
absl::Status Parse(const Words& words, Part* value);            // 0.2, 20%
absl::Status Parse(const Words& words, std::vector<std::string>* value);
absl::Status Parse(const Words& words, std::vector<int>* value);

// The text that Parse() reads back as the same value.
Words Format(bool value);
Words Format(int value);
Words Format(int64_t value);
Words Format(double value);
Words Format(const std::string& value);
Words Format(absl::Duration value);
Words Format(ByteCount value);
Words Format(Part value);
Words Format(const std::vector<std::string>& value);
Words Format(const std::vector<int>& value);

template <typename T>
constexpr bool kIsList = false;
template <typename T>
constexpr bool kIsList<std::vector<T>> = true;

}  // namespace egeria::config

#endif  // EGERIA_COMMON_CONFIG_VALUES_H_

#ifndef EGERIA_COMMON_BASE_IDS_H_
#define EGERIA_COMMON_BASE_IDS_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

namespace egeria {

// An integer that cannot be mistaken for one of another meaning. Construction and `value()` are explicit;
// ordering and equality are those of the integer.
template <typename Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(int64_t value) : value_(value) {}
  constexpr int64_t value() const { return value_; }
  constexpr Id next() const { return Id(value_ + 1); }
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
  friend std::ostream& operator<<(std::ostream& out, Id id) { return out << id.value_; }
  template <typename H>
  friend H AbslHashValue(H h, Id id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  int64_t value_ = 0;
};

// Rises with every restart of a job's processes.
using Generation = Id<struct GenerationTag>;
// Numbers a job's plans from 1 without gaps; 0 is "no plan".
using PlanId = Id<struct PlanIdTag>;
// Position of a layer module in forward order, from 0.
using ModuleIndex = Id<struct ModuleIndexTag>;

// A job's UUID in canonical lower-case text form.
class JobId {
 public:
  JobId() = default;
  explicit JobId(std::string text) : text_(std::move(text)) {}
  const std::string& text() const { return text_; }
  // True for 8-4-4-4-12 lower-case hexadecimal digits.
  bool IsValid() const;
  // A new random (version 4) id.
  static JobId Random();
  friend auto operator<=>(const JobId&, const JobId&) = default;
  friend std::ostream& operator<<(std::ostream& out, const JobId& id) { return out << id.text_; }
  template <typename H>
  friend H AbslHashValue(H h, const JobId& id) {
    return H::combine(std::move(h), id.text_);
  }

 private:
  std::string text_;
};

// 128 random bits as 32 hexadecimal digits, which nobody can guess.
std::string RandomToken();

}  // namespace egeria

#endif  // EGERIA_COMMON_BASE_IDS_H_

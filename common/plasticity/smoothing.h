#ifndef EGERIA_COMMON_PLASTICITY_SMOOTHING_H_
#define EGERIA_COMMON_PLASTICITY_SMOOTHING_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <span>

namespace egeria::plasticity {

// The newest `capacity` numbers of a series. Thread-compatible.
class Window {
 public:
  // Requires 1 <= capacity <= 1024, for which the mean of equal values is exact.
  explicit Window(size_t capacity);

  void Add(double value);
  size_t size() const { return values_.size(); }

  // Mean of the values held: of the last `capacity`, or of as many as there are. Exactly the common value
  // where all are equal. Requires size() >= 1.
  double Mean() const;

  // Least-squares slope of the values held over x = 0, 1, 2, ...; empty under two values. Exactly 0 where
  // all are equal.
  std::optional<double> Slope() const;

 private:
  size_t capacity_;
  std::deque<double> values_;
};

}  // namespace egeria::plasticity

#endif  // EGERIA_COMMON_PLASTICITY_SMOOTHING_H_

#ifndef EGERIA_COMMON_POLICY_FOLLOWED_RATE_H_
#define EGERIA_COMMON_POLICY_FOLLOWED_RATE_H_

#include <algorithm>
#include <cstddef>

#include "absl/types/span.h"

namespace egeria::policy {

// This class picks the learning rate that policies follow from those of all parameter groups: the rate of the first
// group that has learned, for as long as that group learns. Thread-compatible.
class FollowedRate {
 public:
  // `rates`: of all parameter groups, after a step. Returns 0 where no group learns. The result may not be finite.
  double Of(absl::Span<const double> rates) {
    if (group_ >= rates.size() || rates[group_] == 0) {
      const auto found = std::find_if(rates.begin(), rates.end(), [](double rate) { return rate != 0; });
      if (found == rates.end()) return 0;
      group_ = static_cast<size_t>(found - rates.begin());
    }
    return rates[group_];
  }

 private:
  size_t group_ = static_cast<size_t>(-1);  // no group has learned yet
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_FOLLOWED_RATE_H_

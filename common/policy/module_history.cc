#include "common/policy/module_history.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace egeria::policy {
namespace {

constexpr int kInitialSlopes = 3;

}  // namespace

ModuleHistory::ModuleHistory(int window, double tolerance, bool signed_slope)
    : window_(window),
      tolerance_(tolerance),
      signed_slope_(signed_slope),
      readings_(static_cast<size_t>(window)),
      smoothed_(static_cast<size_t>(window)) {}

bool ModuleHistory::Add(double plasticity) {
  readings_.Add(plasticity);
  smoothed_.Add(readings_.Mean());
  status_.plasticity = plasticity;
  status_.readings += 1;
  status_.slope = smoothed_.Slope();
  if (!status_.slope) return false;

  const double slope = *status_.slope;
  if (initial_slopes_ < kInitialSlopes) {
    initial_slopes_ += 1;
    initial_slope_ = std::max(initial_slope_, std::abs(slope));
    if (initial_slopes_ == kInitialSlopes) status_.threshold = tolerance_ * initial_slope_;
    return false;
  }
  const double compared = signed_slope_ ? slope : std::abs(slope);
  const bool counts = compared < *status_.threshold || slope == 0;
  status_.consecutive = counts ? status_.consecutive + 1 : 0;
  return status_.consecutive >= window_;
}

}  // namespace egeria::policy

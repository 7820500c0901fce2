#ifndef EGERIA_COMMON_POLICY_PLASTICITY_TREND_H_
#define EGERIA_COMMON_POLICY_PLASTICITY_TREND_H_

#include <cstddef>
#include <deque>
#include <optional>

namespace egeria::policy {

// What the newest plasticity readings of one module say to a policy that decides by something else. The snapshot that
// they are measured against is to be renewed every `window` readings, so that means over them do not have its sawtooth.
// Thread-compatible.
class PlasticityTrend {
 public:
  // Requires window (W) >= 2.
  explicit PlasticityTrend(int window);

  // Takes in a finite reading, at least 0.
  void Add(double plasticity);
  void Forget() { readings_.clear(); }

  // Whether the mean of the last W readings is over that of the W before by more than a fifth. False before there are
  // 2 W.
  bool IsRising() const;

  std::optional<double> newest() const {
    return readings_.empty() ? std::nullopt : std::optional<double>(readings_.back());
  }
  int readings() const { return static_cast<int>(readings_.size()); }

 private:
  double MeanOf(size_t first) const;  // of W readings

  const size_t window_;
  std::deque<double> readings_;  // the last 2 W
};

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_PLASTICITY_TREND_H_

#ifndef EGERIA_COMMON_REFERENCE_SELECTION_H_
#define EGERIA_COMMON_REFERENCE_SELECTION_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

// Selects the backend that a reference uses. Pure: no torch, no clock.
namespace egeria::reference {

// The measurements of one backend on the job's own sample.
struct BackendMeasurement {
  std::string name;
  double seconds = 0;
  double noise = 0;     // SP loss between this backend's output and the float32 baseline's
  std::string refusal;  // not empty: it cannot run this module, and why
};

struct SelectionOptions {
  // A backend's noise may be at most this share of the median plasticity of the last `window` readings.
  double max_noise_share = 0.1;
  size_t window = 9;
  // Fewer readings than this say nothing yet: only backends at float32's own noise are taken.
  size_t min_readings = 3;
  double exact_noise = 1e-10;
  // Measure again when the median has fallen under this share of what it was at the last measurement.
  double remeasure_at = 0.25;
};

// Chooses the fastest backend whose quantisation noise is well under the plasticity signal. The signal
// shrinks as a module converges, so a backend may be refused later that was good before. Thread-compatible.
class BackendSelector {
 public:
  explicit BackendSelector(SelectionOptions options = {}) : options_(options) {}

  // Replaces what is known. The last one is the baseline: always eligible, noise 0.
  void SetMeasurements(std::vector<BackendMeasurement> measurements);
  // Newer noise of one backend, measured after a snapshot; the larger of the two last values counts.
  void UpdateNoise(const std::string& name, double noise);
  // The backend failed while running: not eligible until SetMeasurements().
  void Refuse(const std::string& name, std::string reason);
  void AddReading(double plasticity);

  // True until SetMeasurements(), and when the signal has shrunk much since.
  bool NeedsMeasurement() const;
  // The backend to use; empty before SetMeasurements().
  std::string Choose() const;
  // Median of the last readings; none before min_readings.
  std::optional<double> MedianSignal() const;
  const std::vector<BackendMeasurement>& measurements() const { return measurements_; }

 private:
  bool IsQuietEnough(const BackendMeasurement& measurement) const;

  const SelectionOptions options_;
  std::vector<BackendMeasurement> measurements_;
  std::deque<double> readings_;
  std::optional<double> signal_when_measured_;
};

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_SELECTION_H_

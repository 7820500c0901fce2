#ifndef EGERIA_CONTROLLER_JOB_CURVE_H_
#define EGERIA_CONTROLLER_JOB_CURVE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace egeria::controller {

// A value over the steps of a training, for people to look at. It keeps a bounded number of points: each is the mean of
// equally many steps, and of twice as many whenever there would be too many points. Thread-compatible.
class Curve {
 public:
  struct Point {
    int64_t step = 0;  // the newest one that it is about
    double value = 0;

    bool operator==(const Point&) const = default;
  };

  // Keeps at most `points` >= 2 points.
  explicit Curve(size_t points) : most_(points) {}

  // Takes in a value of a step >= 0. One that is not finite, or whose step is not behind the newest one, is left out.
  void Add(int64_t step, double value);
  // Forgets what came after `step`. A point that is about steps before and after it goes, too.
  void CutAfter(int64_t step);
  // Says whether a value of this step would begin a new point.
  bool BeginsPoint(int64_t step) const { return buckets_.empty() || step / width_ > buckets_.back().step / width_; }

  std::vector<Point> points() const;

 private:
  // The values of the steps from a multiple of width_ up to the next one.
  struct Bucket {
    int64_t step = 0;  // the newest one
    double sum = 0;
    int64_t count = 0;
  };
  void Halve();

  size_t most_;
  int64_t width_ = 1;
  std::vector<Bucket> buckets_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_CURVE_H_

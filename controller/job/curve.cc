#include "controller/job/curve.h"

#include <cmath>
#include <utility>

namespace egeria::controller {

void Curve::Add(int64_t step, double value) {
  if (!std::isfinite(value) || step < 0 || (!buckets_.empty() && step <= buckets_.back().step)) return;
  while (BeginsPoint(step) && buckets_.size() == most_) Halve();
  if (BeginsPoint(step)) buckets_.emplace_back();
  Bucket& bucket = buckets_.back();
  bucket.step = step;
  bucket.sum += value;
  ++bucket.count;
}

void Curve::CutAfter(int64_t step) {
  while (!buckets_.empty() && buckets_.back().step > step) buckets_.pop_back();
}

std::vector<Curve::Point> Curve::points() const {
  std::vector<Point> points;
  points.reserve(buckets_.size());
  for (const Bucket& bucket : buckets_) {
    points.push_back({bucket.step, bucket.sum / static_cast<double>(bucket.count)});
  }
  return points;
}

void Curve::Halve() {
  width_ *= 2;
  std::vector<Bucket> merged;
  merged.reserve(most_);
  for (const Bucket& bucket : buckets_) {
    if (merged.empty() || bucket.step / width_ > merged.back().step / width_) {
      merged.push_back(bucket);
    } else {
      merged.back() = {bucket.step, merged.back().sum + bucket.sum, merged.back().count + bucket.count};
    }
  }
  buckets_ = std::move(merged);
}

}  // namespace egeria::controller

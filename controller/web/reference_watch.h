#ifndef EGERIA_CONTROLLER_WEB_REFERENCE_WATCH_H_
#define EGERIA_CONTROLLER_WEB_REFERENCE_WATCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "controller/reference/evaluator.h"

namespace egeria::controller {

// Tells from the counters of the reference engine whether samples wait and nothing becomes of them. Thread-compatible.
class ReferenceWatch {
 public:
  static constexpr absl::Duration kPatience = absl::Minutes(5);

  // `now` is monotonic. Returns OK, or UNAVAILABLE.
  absl::Status Look(const reference::EvaluatorCounters& counters, absl::Time now);

 private:
  int64_t done_ = -1;
  absl::Time moved_ = absl::InfinitePast();  // when something was done last, or nothing waited
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_WEB_REFERENCE_WATCH_H_

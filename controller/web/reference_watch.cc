#include "controller/web/reference_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace egeria::controller {

absl::Status ReferenceWatch::Look(const reference::EvaluatorCounters& counters, absl::Time now) {
  int64_t done = counters.evaluated + counters.dropped_late + counters.dropped_queue_full;
  for (const auto& [reason, ends] : counters.engine_ends) done += ends;
  if (std::exchange(done_, done) != done || counters.queued_bytes == 0) moved_ = now;
  if (now - moved_ <= kPatience) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("samples wait, and none has been evaluated for ",
                                             absl::ToInt64Seconds(now - moved_),
                                             " s: the machine is busier than max_cpu_load allows, or the engine is "
                                             "wedged; training goes on without readings"));
}

}  // namespace egeria::controller

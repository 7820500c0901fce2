#include "worker/commit/wait.h"

#include <algorithm>
#include <exception>

#include "common/base/status.h"
#include "worker/commit/torch_status.h"

namespace egeria::worker {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSlice{100};

// Waits at most `slice`. Errors: UNAVAILABLE [RANK_GONE].
absl::Status WaitSlice(c10d::Work* work, milliseconds slice) {
  try {
    work->wait(slice);
  } catch (const std::exception& error) {
    // That the slice is over is an exception, too.
    if (!work->isCompleted() || work->isSuccess()) return absl::OkStatus();
    return NamedError(absl::StatusCode::kUnavailable, "RANK_GONE", MessageOf(error));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WaitFor(c10d::Work* work, const WaitLimits& limits) {
  const Clock::time_point start = Clock::now();
  for (;;) {
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
    const milliseconds left = limits.patience - std::min(waited, limits.patience);
    // Zero would mean for ever.
    EGERIA_RETURN_IF_ERROR(WaitSlice(work, std::clamp(left, milliseconds(1), kSlice)));
    if (work->isCompleted() && work->isSuccess()) return absl::OkStatus();
    if (limits.interrupted && limits.interrupted()) {
      return NamedError(absl::StatusCode::kCancelled, "INTERRUPTED", "interrupted while waiting for other ranks");
    }
    if (left <= milliseconds(0)) {
      return NamedError(absl::StatusCode::kDeadlineExceeded, "OTHER_RANKS_LATE", "waited ", limits.patience.count(),
                        " ms for other ranks");
    }
  }
}

}  // namespace egeria::worker

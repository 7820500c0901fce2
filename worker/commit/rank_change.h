#ifndef EGERIA_WORKER_COMMIT_RANK_CHANGE_H_
#define EGERIA_WORKER_COMMIT_RANK_CHANGE_H_

#include <functional>

#include "absl/status/status.h"
#include "worker/commit/process_group.h"
#include "worker/commit/wait.h"

namespace egeria::worker {

// A RankChange is made on this rank together with the same change on all other ranks.
struct RankChange {
  // Changes this rank. It calls no collective, so that a rank on which it fails keeps no other rank waiting.
  std::function<absl::Status()> apply;
  // Makes this rank as it was before apply(), which has succeeded, or has failed half-way. It cannot fail.
  std::function<void()> undo;
};

// Makes a change on all ranks of the group, or on none: every rank applies it, all tell each other whether they could,
// and where one could not, all undo it. A null group is a world of one. It is a collective, which all ranks call at
// the same step boundary. The Python package follows the same protocol in egeria/freeze/switcher.py.
//
// Returns OK if the change stands on all ranks.
// Errors, after which this rank is as it was before:
//   ABORTED [CHANGE_UNDONE] the change failed on this rank, for the reason in the text, or on another one; every rank
//   gets this error. UNAVAILABLE [COMMIT_FAILED] a rank is gone, so that nobody knows what the others did; those of
//   WaitFor().
absl::Status ChangeAllOrNone(const ProcessGroupPtr& group, const RankChange& change, const WaitLimits& limits = {});

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_COMMIT_RANK_CHANGE_H_

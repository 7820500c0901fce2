#ifndef EGERIA_WORKER_TRAINER_AGREED_OPTIONS_H_
#define EGERIA_WORKER_TRAINER_AGREED_OPTIONS_H_

#include "absl/status/status.h"
#include "worker/commit/process_group.h"
#include "worker/trainer/options.h"

namespace egeria::trainer {

// Makes the ranks train with one set of options. A collective, with a time limit.
//
// Where a rank's options differ from rank 0's, it takes rank 0's. Files, addresses, the device and the cache stay its
// own. If some rank has no controller and others have one, or if their plans differ, all ranks train plainly, without
// freezing. Each difference is logged by rank 0 and by the rank that has it.
//
// Errors: UNAVAILABLE [RANK_MISSING], [NO_STORE].
absl::Status AgreeOnOptions(const worker::GroupMember& member, Options* options);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_AGREED_OPTIONS_H_

#ifndef EGERIA_WORKER_TRAINER_CACHE_LINK_H_
#define EGERIA_WORKER_TRAINER_CACHE_LINK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "worker/session/frozen_forward.h"
#include "worker/trainer/launch.h"
#include "worker/trainer/options.h"

namespace egeria::trainer {

// The line to the node's egeria-cache; null where the options name none. All ranks share the entries of the job
// `job_id`; where that is empty, it becomes the options' or a new one.
// Errors: those of ShareFromRankZero(), WantedFormatOf() and ActivationCache::Start().
absl::StatusOr<std::unique_ptr<worker::FrozenForward>> LinkCache(const Options& options, const Launch& launch,
                                                                 c10::Device device, int64_t steps_per_epoch,
                                                                 std::string* job_id);

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_CACHE_LINK_H_

#include "worker/trainer/cache_link.h"

#include <string>
#include <utility>

#include "common/base/ids.h"
#include "common/base/status.h"

namespace egeria::trainer {

absl::StatusOr<std::unique_ptr<worker::FrozenForward>> LinkCache(const Options& options, const Launch& launch,
                                                                 c10::Device device, int64_t steps_per_epoch,
                                                                 std::string* job_id) {
  if (options.cache.empty()) return nullptr;
  EGERIA_ASSIGN_OR_RETURN(
      const cache::WantedFormat format,
      cache::WantedFormatOf(options.cache_compression == "none" ? "exact" : options.cache_compression));
  if (job_id->empty()) {
    const std::string own_id = options.job_id.empty() ? JobId::Random().text() : options.job_id;
    EGERIA_ASSIGN_OR_RETURN(*job_id, ShareFromRankZero(launch.member, "cache_job_id", own_id));
  }
  worker::FrozenForward::Options parts;
  EGERIA_ASSIGN_OR_RETURN(parts.cache,
                          cache::ActivationCache::Start({.address = options.cache,
                                                         .job_id = *job_id,
                                                         .device = device,
                                                         .format = format,
                                                         .quota_bytes = static_cast<int64_t>(options.cache_job_quota),
                                                         .patience = absl::Seconds(options.cache_patience)}));
  parts.samples_repeat = options.augment != "random";
  parts.passes_per_epoch = steps_per_epoch;
  parts.always = options.cache_use == "always";
  parts.tells = launch.member.rank == 0;
  return std::make_unique<worker::FrozenForward>(std::move(parts));
}

}  // namespace egeria::trainer

#ifndef EGERIA_CONTROLLER_JOB_JOB_MANAGER_OPTIONS_H_
#define EGERIA_CONTROLLER_JOB_JOB_MANAGER_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "controller/job/registration.h"

namespace egeria::controller {

// The modules that the reference runs for a reading: the frontmost active one, or all up to it (the paper's way).
enum class ReferenceScope { kModule, kPrefix };

struct JobManagerOptions {
  ReferenceScope scope = ReferenceScope::kModule;
  std::string host;                                                                // this machine's name
  int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // this machine's
  absl::Duration heartbeat_interval = absl::Seconds(1);
  int max_jobs = 4'096;                          // unfinished ones, and the same number of finished ones
  int64_t max_observations_per_job = 1'000'000;  // in memory and in the journal
  // For the facts of a job in the journal, and about as many in memory. Beyond it no observation is taken, and beyond
  // five quarters of it nothing at all.
  int64_t max_bytes_per_job = int64_t{64} << 20;
  // For the facts of all jobs together. Beyond it the jobs that have more than a part of it take no more observations.
  int64_t max_bytes = int64_t{1} << 30;
  absl::Duration finished_retention = absl::Hours(24 * 30);
  absl::Duration idle_reference = absl::Minutes(10);      // then a job without a stream loses its reference models
  absl::Duration unheard_retention = absl::Minutes(10);   // for jobs that have registered and done nothing since
  absl::Duration silent_retention = absl::Hours(24 * 7);  // for jobs that never finished
  RegistrationLimits registration;
  // The clock of all ages and deadlines; null: the journal's. It never goes back, nor leaps.
  std::function<absl::Time()> clock;
  std::function<absl::Time()> wall_clock = absl::Now;  // for people to read

  // Whether a job computes on this machine's CPU.
  bool SharesCores(const v1::RegisterJobRequest& registration) const {
    return registration.device_type() == "cpu" && registration.host() == host;
  }
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOB_MANAGER_OPTIONS_H_

#ifndef EGERIA_COMMON_BASE_MONOTONIC_H_
#define EGERIA_COMMON_BASE_MONOTONIC_H_

#include <chrono>

#include "absl/time/time.h"

namespace egeria {

// A time for deadlines and ages, which goes forward whatever somebody sets the clock to. It means nothing in another
// process, nor after a restart of the machine.
inline absl::Time MonotonicNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace egeria

#endif  // EGERIA_COMMON_BASE_MONOTONIC_H_

#ifndef EGERIA_LAUNCHER_CONNECT_H_
#define EGERIA_LAUNCHER_CONNECT_H_

#include <string>

#include "absl/status/status.h"

namespace egeria::run {

// Tries to connect to a daemon that somebody else has started, for two seconds at most.
// Errors: UNAVAILABLE saying why it does not answer; PERMISSION_DENIED [UNTRUSTED_SOCKET] somebody else listens.
absl::Status CheckThatSomebodyListens(const std::string& address);

}  // namespace egeria::run

#endif  // EGERIA_LAUNCHER_CONNECT_H_

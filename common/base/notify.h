#ifndef EGERIA_COMMON_BASE_NOTIFY_H_
#define EGERIA_COMMON_BASE_NOTIFY_H_

#include <string>

namespace egeria {

// Tells a service manager about this program's state ("READY=1", "STOPPING=1") by the datagram protocol of
// sd_notify: the socket is named by NOTIFY_SOCKET. Does nothing where that is unset; never fails or blocks.
void NotifyServiceManager(const std::string& state);

// Writes `state` and a newline to the descriptor and closes it: "READY=1", or "STATUS=" and why it will not be ready.
// Does nothing for -1.
void NotifyDescriptor(int fd, const std::string& state = "READY=1");

}  // namespace egeria

#endif  // EGERIA_COMMON_BASE_NOTIFY_H_

#ifndef EGERIA_CONTROLLER_NOTIFY_H_
#define EGERIA_CONTROLLER_NOTIFY_H_

#include <string>

namespace egeria::controller {

// Tells a service manager about this program's state ("READY=1", "STOPPING=1") by the datagram protocol of
// sd_notify: the socket is named by NOTIFY_SOCKET. Does nothing where that is unset; never fails or blocks.
void NotifyServiceManager(const std::string& state);

// Writes "READY=1\n" to the descriptor and closes it. Does nothing for -1.
void NotifyDescriptor(int fd);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_NOTIFY_H_

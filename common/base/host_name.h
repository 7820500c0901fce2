#ifndef EGERIA_COMMON_BASE_HOST_NAME_H_
#define EGERIA_COMMON_BASE_HOST_NAME_H_

#include <string>

namespace egeria {

// This machine's name; "" where it cannot be told.
std::string HostName();

}  // namespace egeria

#endif  // EGERIA_COMMON_BASE_HOST_NAME_H_

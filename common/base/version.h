#ifndef EGERIA_COMMON_BASE_VERSION_H_
#define EGERIA_COMMON_BASE_VERSION_H_

namespace egeria {

// The version of this build, such as "0.1.0". The top-level CMakeLists.txt sets it.
const char* Version();

}  // namespace egeria

#endif  // EGERIA_COMMON_BASE_VERSION_H_

#ifndef EGERIA_COMMON_BASE_VERSION_H_
#define EGERIA_COMMON_BASE_VERSION_H_

namespace egeria {

// Of this build, as in "0.1.0"; said once, in the top-level CMakeLists.txt.
const char* Version();

}  // namespace egeria

#endif  // EGERIA_COMMON_BASE_VERSION_H_

#ifndef EGERIA_COMMON_BASE_PRIVATE_FOLDER_H_
#define EGERIA_COMMON_BASE_PRIVATE_FOLDER_H_

#include <string>

#include "absl/status/status.h"

namespace egeria {

// Makes a folder for this user alone, with those above it, or looks at the one that is there. One that others can read
// is only warned of.
// Errors: FAILED_PRECONDITION [UNSAFE_FOLDER] it belongs to another user, who is not root, or others can write to it;
// UNAVAILABLE it cannot be made or is none, with the reason.
absl::Status MakePrivateFolder(const std::string& path);

// The same check for a file or folder that exists. Errors: likewise.
absl::Status CheckPrivate(const std::string& path);

// True if users other than this one and root can put something into the folder.
bool OthersCanWriteTo(const std::string& folder);

}  // namespace egeria

#endif  // EGERIA_COMMON_BASE_PRIVATE_FOLDER_H_

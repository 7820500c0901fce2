#ifndef EGERIA_WORKER_CACHE_ENTRY_CACHE_FOLDER_H_
#define EGERIA_WORKER_CACHE_ENTRY_CACHE_FOLDER_H_

#include <map>
#include <string>

#include "absl/status/status.h"

// An egeria-cache and the processes that start or adopt one have to agree on these facts about its folder.
namespace egeria::cache {

// The folder of a user's egeria-cache: $EGERIA_CACHE_FOLDER, else /var/cache/egeria for root, else egeria below
// $XDG_CACHE_HOME or ~/.cache.
std::string DefaultFolder(const std::map<std::string, std::string>& environment, bool root);

// The address at which the egeria-cache of this folder listens, unless it is told otherwise.
std::string DefaultAddress(const std::string& folder);

// Every process that uses the folder's egeria-cache holds a shared lock on this file. An egeria-cache with until_unused
// ends when it gets the exclusive lock. It holds this lock to its end, so that nobody can begin to use it while it
// ends.
std::string UsersFile(const std::string& folder);

// Makes the folder for this user alone, since activations tell of the data that they were computed from, or checks that
// it is; see MakePrivateFolder().
// Errors: UNAVAILABLE [STORE] with the reason.
absl::Status MakeFolder(const std::string& folder);

// The error that the folder cannot be used: UNAVAILABLE [STORE].
absl::Status UnusableFolder(const std::string& folder, const std::string& why);

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_ENTRY_CACHE_FOLDER_H_

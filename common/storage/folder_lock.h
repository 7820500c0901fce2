#ifndef EGERIA_COMMON_STORAGE_FOLDER_LOCK_H_
#define EGERIA_COMMON_STORAGE_FOLDER_LOCK_H_

#include <string>

#include "rocksdb/status.h"

namespace egeria {

// Whether a RocksDB could not be opened because it is open already, in another process or in this one.
bool IsHeldByAnother(const rocksdb::Status& opened);

// Whether the folder has files of a RocksDB, and not CURRENT, with which it begins to read: it would begin anew, and
// remove the others without a word.
bool HasLostItsBeginning(const std::string& folder);

}  // namespace egeria

#endif  // EGERIA_COMMON_STORAGE_FOLDER_LOCK_H_

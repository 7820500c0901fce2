#ifndef EGERIA_COMMON_STORAGE_FOLDER_LOCK_H_
#define EGERIA_COMMON_STORAGE_FOLDER_LOCK_H_

#include "rocksdb/status.h"

namespace egeria {

// Whether a RocksDB could not be opened because it is open already, in another process or in this one.
bool IsHeldByAnother(const rocksdb::Status& opened);

}  // namespace egeria

#endif  // EGERIA_COMMON_STORAGE_FOLDER_LOCK_H_

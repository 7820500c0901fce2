#ifndef EGERIA_WORKER_CACHE_DAEMON_STORE_FORMAT_H_
#define EGERIA_WORKER_CACHE_DAEMON_STORE_FORMAT_H_

// How entries lie in the store's RocksDB: a column family for each namespace and frozen prefix, in it an entry and its
// length for each sample. Entries lie in blob files; lengths stay in the sorted files, so that the index is read at the
// start without the entries.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "rocksdb/env.h"
#include "rocksdb/options.h"
#include "rocksdb/slice.h"
#include "rocksdb/status.h"
#include "worker/cache/entry/fingerprint.h"

namespace egeria::cache {

// A key of a column family is a kind and the sample, big-endian.
std::string EntryKey(uint64_t sample);
std::string LengthKey(uint64_t sample);
// Whether the key is one of a length.
bool IsLengthKey(const rocksdb::Slice& key);
// Requires a key of an entry or a length.
uint64_t SampleOf(const rocksdb::Slice& key);

std::string FamilyName(const JobId& name, const Fingerprint& prefix);
// Returns false for a name that FamilyName() does not give.
bool ParseFamilyName(absl::string_view text, JobId* name, Fingerprint* prefix);

rocksdb::ColumnFamilyOptions FamilyOptions(int64_t write_buffer_bytes);
rocksdb::Options DatabaseOptions(int64_t write_buffer_bytes, rocksdb::Env* environment);
// Entries are written and deleted with these options.
rocksdb::WriteOptions EntryWrites();

// Whether the status says that files are damaged, and not that the system could not read them.
bool IsDamage(const rocksdb::Status& status);
// Keeps the small files of a damaged store aside, for whoever wants to know what happened, and returns their folder.
// The entries are not kept: they would fill the disk, and can be computed again.
std::string KeepLists(const std::string& folder);

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_STORE_FORMAT_H_

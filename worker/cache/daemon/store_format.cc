#include "worker/cache/daemon/store_format.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/storage/rocksdb_log.h"

namespace egeria::cache {
namespace {

constexpr char kEntry = 'e';
constexpr char kLength = 'l';
constexpr size_t kKeyLength = 1 + sizeof(uint64_t);
constexpr size_t kUuidLength = 36;

constexpr rlim_t kMinOpenFiles = 64;
constexpr rlim_t kMaxOpenFiles = 65'536;

// Half of the descriptors that the process may have are for files; the others are for connections.
int MostOpenFiles() {
  rlimit descriptors;
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return kMinOpenFiles;
  return static_cast<int>(std::clamp<rlim_t>(descriptors.rlim_cur / 2, kMinOpenFiles, kMaxOpenFiles));
}

std::string Key(char kind, uint64_t sample) {
  std::string key(1, kind);
  for (int shift = 56; shift >= 0; shift -= 8) key.push_back(static_cast<char>(sample >> shift & 0xff));
  return key;
}

}  // namespace

std::string EntryKey(uint64_t sample) { return Key(kEntry, sample); }

std::string LengthKey(uint64_t sample) { return Key(kLength, sample); }

bool IsLengthKey(const rocksdb::Slice& key) { return key.size() == kKeyLength && key[0] == kLength; }

uint64_t SampleOf(const rocksdb::Slice& key) {
  uint64_t sample = 0;
  for (size_t i = 1; i < kKeyLength; ++i) sample = sample << 8 | static_cast<uint8_t>(key[i]);
  return sample;
}

std::string FamilyName(const JobId& name, const Fingerprint& prefix) {
  return absl::StrCat(name.text(), "/", absl::BytesToHexString(RawBytes(prefix)));
}

bool ParseFamilyName(absl::string_view text, JobId* name, Fingerprint* prefix) {
  if (text.size() != kUuidLength + 1 + 2 * prefix->size() || text[kUuidLength] != '/') return false;
  *name = JobId(std::string(text.substr(0, kUuidLength)));
  const std::string bytes = absl::HexStringToBytes(text.substr(kUuidLength + 1));
  std::memcpy(prefix->data(), bytes.data(), prefix->size());
  return name->IsValid() && FamilyName(*name, *prefix) == text;
}

rocksdb::ColumnFamilyOptions FamilyOptions(int64_t write_buffer_bytes) {
  rocksdb::ColumnFamilyOptions family;
  family.enable_blob_files = true;
  family.min_blob_size = 512;  // lengths are smaller
  family.blob_file_size = uint64_t{256} << 20;
  // There is no garbage, since nothing is written twice; the collection would copy the oldest entries time and again.
  family.enable_blob_garbage_collection = false;
  family.compression = rocksdb::kNoCompression;
  family.write_buffer_size = write_buffer_bytes;
  family.max_write_buffer_number = 3;
  return family;
}

rocksdb::Options DatabaseOptions(int64_t write_buffer_bytes, rocksdb::Env* environment) {
  rocksdb::Options database(rocksdb::DBOptions(), FamilyOptions(write_buffer_bytes));
  database.env = environment;
  database.create_if_missing = true;
  database.db_write_buffer_size = 2 * write_buffer_bytes;
  database.max_background_jobs = 2;
  database.max_open_files = MostOpenFiles();
  // Files take no more of the disk than is written, so that the store stays under the quota.
  database.allow_fallocate = false;
  database.info_log = std::make_shared<RocksdbLog>();
  return database;
}

rocksdb::WriteOptions EntryWrites() {
  rocksdb::WriteOptions writing;
  writing.disableWAL = true;
  writing.no_slowdown = true;  // an entry is lost rather than waited for
  // A prefix may be dropped meanwhile. Without this option RocksDB takes that for a fault and writes no more.
  writing.ignore_missing_column_families = true;
  return writing;
}

bool IsDamage(const rocksdb::Status& status) {
  return status.IsCorruption() || status.IsInvalidArgument() || status.IsNotSupported() || status.IsPathNotFound();
}

std::string KeepLists(const std::string& folder) {
  namespace fs = std::filesystem;
  const fs::path kept = fs::path(folder) / "damaged";
  std::error_code error;
  fs::remove_all(kept, error);
  fs::create_directory(kept, error);
  for (const auto& file : fs::directory_iterator(folder, error)) {
    const std::string name = file.path().filename().string();
    const bool is_list = name == "CURRENT" || absl::StartsWith(name, "MANIFEST-") || absl::StartsWith(name, "OPTIONS-");
    if (is_list) fs::copy(file.path(), kept / name, error);
  }
  return kept.string();
}

}  // namespace egeria::cache

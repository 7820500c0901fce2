#include "common/storage/log_reader.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace egeria {
namespace {

// https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format: blocks of records, each with a header of
// checksum, length and type, and zeros where a header does not fit any more.
constexpr size_t kBlock = 32'768;
constexpr size_t kHeader = 7;
enum : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

// CRC-32C, as RocksDB stores it. `bytes` begin with the type.
uint32_t Checksum(absl::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> made;
    for (uint32_t i = 0; i < made.size(); ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) made[i] = made[i] >> 1 ^ (made[i] & 1 ? 0x82f63b78u : 0);
    }
    return made;
  }();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

// The record that begins `block`, without its header; empty and no data where there is no good one.
bool ReadRecord(absl::string_view block, uint8_t* type, absl::string_view* payload) {
  if (block.size() < kHeader) return false;
  *type = static_cast<uint8_t>(block[6]);
  const size_t length = static_cast<uint8_t>(block[4]) | static_cast<size_t>(static_cast<uint8_t>(block[5])) << 8;
  if (*type < kFull || *type > kLast || kHeader + length > block.size()) return false;
  uint32_t stored = 0;
  std::memcpy(&stored, block.data(), sizeof(stored));
  if (stored != Checksum(block.substr(6, 1 + length))) return false;
  *payload = block.substr(kHeader, length);
  return true;
}

}  // namespace

LogContents ReadLog(absl::string_view log) {
  LogContents contents;
  std::string batch;
  bool whole = false;    // the batch has had its beginning, and no gap since
  bool damaged = false;  // since the last good record
  for (size_t begin = 0; begin < log.size(); begin += kBlock) {
    const absl::string_view block = log.substr(begin, kBlock);
    for (size_t at = 0; at + kHeader <= block.size();) {
      uint8_t type = 0;
      absl::string_view payload;
      if (!ReadRecord(block.substr(at), &type, &payload)) {
        damaged = true;
        whole = false;
        ++at;
        continue;
      }
      at += kHeader + payload.size();
      if (damaged) ++contents.damaged_places;
      damaged = false;
      if (type == kFull || type == kFirst) {
        batch.clear();
        whole = true;
      }
      batch.append(payload.data(), payload.size());
      if ((type == kFull || type == kLast) && whole) contents.batches.push_back(batch);
    }
  }
  return contents;
}

}  // namespace egeria

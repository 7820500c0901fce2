#include "worker/cache/entry.h"

#include <cstring>
#include <memory>

#include "common/base/status.h"
#include "xxhash.h"

namespace egeria::cache {
namespace {

constexpr uint32_t kMagic = 0x31414745;  // "EGA1"
constexpr size_t kMaxTensors = 64;
constexpr size_t kMaxDimensions = 16;
constexpr size_t kAlignment = 64;  // of each tensor's bytes, from the entry's beginning

// Little-endian, as every machine that torch runs on.
struct Header {
  uint32_t magic = kMagic;
  uint32_t tensors = 0;
  uint64_t checksum = 0;  // XXH3-64 of the key and of all that follows this field
  uint64_t input_hash = 0;
};
static_assert(sizeof(Header) == 24);
constexpr size_t kChecked = offsetof(Header, input_hash);  // from here on

// Before the first tensor's bytes: a TensorHeader and its sizes for each.
struct TensorHeader {
  uint32_t dtype = 0;
  uint32_t dimensions = 0;
};

size_t Aligned(size_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

size_t BytesOf(const EntryTensor& tensor) {
  size_t bytes = ElementSize(tensor.dtype);
  for (const int64_t size : tensor.shape) bytes *= static_cast<size_t>(size);
  return bytes;
}

size_t HeadersSize(std::span<const EntryTensor> tensors) {
  size_t bytes = sizeof(Header);
  for (const EntryTensor& tensor : tensors) bytes += sizeof(TensorHeader) + tensor.shape.size() * sizeof(int64_t);
  return bytes;
}

uint64_t Checksum(const EntryKey& key, std::span<const std::byte> entry) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  XXH3_64bits_update(state.get(), key.name.text().data(), key.name.text().size());
  XXH3_64bits_update(state.get(), key.prefix.data(), key.prefix.size());
  XXH3_64bits_update(state.get(), &key.sample, sizeof(key.sample));
  XXH3_64bits_update(state.get(), entry.data() + kChecked, entry.size() - kChecked);
  return XXH3_64bits_digest(state.get());
}

// Reads a struct at `*at` and moves on; false where the entry ends before.
template <typename T>
bool Take(std::span<const std::byte> entry, size_t* at, T* value) {
  if (entry.size() - *at < sizeof(T)) return false;
  std::memcpy(value, entry.data() + *at, sizeof(T));
  *at += sizeof(T);
  return true;
}

bool TakeTensorHeader(std::span<const std::byte> entry, size_t* at, EntryTensor* tensor) {
  TensorHeader header;
  if (!Take(entry, at, &header) || header.dimensions > kMaxDimensions) return false;
  tensor->dtype = static_cast<DataType>(header.dtype);
  if (header.dtype > static_cast<uint32_t>(DataType::kBool) || ElementSize(tensor->dtype) == 0) return false;
  tensor->shape.resize(header.dimensions);
  size_t bytes = ElementSize(tensor->dtype);
  for (int64_t& size : tensor->shape) {
    if (!Take(entry, at, &size) || size < 0 || (size > 0 && bytes > entry.size() / static_cast<size_t>(size))) {
      return false;
    }
    bytes *= static_cast<size_t>(size);
  }
  return true;
}

}  // namespace

size_t EntrySize(std::span<const EntryTensor> tensors) {
  size_t size = HeadersSize(tensors);
  for (const EntryTensor& tensor : tensors) size = Aligned(size) + BytesOf(tensor);
  return size;
}

void WriteEntry(const EntryKey& key, uint64_t input_hash, std::span<const EntryTensor> tensors,
                std::span<std::byte> out) {
  EGERIA_CHECK(out.size() == EntrySize(tensors));
  EGERIA_CHECK(tensors.size() <= kMaxTensors);
  std::memset(out.data(), 0, HeadersSize(tensors));
  size_t at = sizeof(Header);
  const auto put = [&](const void* data, size_t bytes) {
    std::memcpy(out.data() + at, data, bytes);
    at += bytes;
  };
  for (const EntryTensor& tensor : tensors) {
    EGERIA_CHECK(tensor.shape.size() <= kMaxDimensions);
    const TensorHeader header{static_cast<uint32_t>(tensor.dtype), static_cast<uint32_t>(tensor.shape.size())};
    put(&header, sizeof(header));
    put(tensor.shape.data(), tensor.shape.size() * sizeof(int64_t));
  }
  for (const EntryTensor& tensor : tensors) {
    const size_t begin = Aligned(at);
    std::memset(out.data() + at, 0, begin - at);
    at = begin;
    put(tensor.data, BytesOf(tensor));
  }
  Header header{.tensors = static_cast<uint32_t>(tensors.size()), .input_hash = input_hash};
  std::memcpy(out.data(), &header, sizeof(header));
  header.checksum = Checksum(key, out);
  std::memcpy(out.data(), &header, sizeof(header));
}

bool ReadEntry(const EntryKey& key, std::span<const std::byte> bytes, Entry* entry) {
  Header header;
  size_t at = 0;
  if (!Take(bytes, &at, &header) || header.magic != kMagic || header.tensors > kMaxTensors) return false;
  if (header.checksum != Checksum(key, bytes)) return false;
  entry->input_hash = header.input_hash;
  entry->tensors.resize(header.tensors);
  for (EntryTensor& tensor : entry->tensors) {
    if (!TakeTensorHeader(bytes, &at, &tensor)) return false;
  }
  for (EntryTensor& tensor : entry->tensors) {
    at = Aligned(at);
    const size_t size = BytesOf(tensor);
    if (at > bytes.size() || bytes.size() - at < size) return false;
    tensor.data = bytes.data() + at;
    at += size;
  }
  return at == bytes.size();
}

}  // namespace egeria::cache

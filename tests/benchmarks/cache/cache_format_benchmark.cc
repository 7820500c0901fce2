// Measures what the cache's storage formats make of activations: their size over that of the exact format, the speed at
// which they are written and read, on one thread, and the effect of rounding. Each file holds float32 values of equally
// long entries, as dump_activations.py writes them: NAME.BYTES.f32, with the bytes of one entry.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "worker/cache/entry/entry.h"

namespace egeria::cache {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 5;  // the fastest one counts

std::vector<char> Read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Times {
  double write = 1e9, read = 1e9;
  size_t bytes = 0;
  RoundingError rounding;
};

Times Measure(const std::vector<char>& values, size_t entry_bytes, StorageFormat format) {
  const EntryKey key{JobId("0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11"), {1}, 1};
  Times times;
  std::vector<std::vector<std::byte>> entries(values.size() / entry_bytes);
  Entry read;
  for (int round = 0; round < kRounds; ++round) {
    times.rounding = {};
    times.bytes = 0;
    const auto begin = Clock::now();
    for (size_t i = 0; i < entries.size(); ++i) {
      const EntryTensor tensor{DataType::kFloat32,
                               {static_cast<int64_t>(entry_bytes / sizeof(float))},
                               reinterpret_cast<const std::byte*>(values.data() + i * entry_bytes)};
      entries[i] = WriteEntry(key, 1, std::span(&tensor, 1), format, &times.rounding);
      times.bytes += entries[i].size();
    }
    const auto middle = Clock::now();
    for (const std::vector<std::byte>& entry : entries) {
      if (!ReadEntry(key, entry, 2 * entry_bytes + 1'024, &read)) std::abort();
    }
    times.write = std::min(times.write, std::chrono::duration<double>(middle - begin).count());
    times.read = std::min(times.read, std::chrono::duration<double>(Clock::now() - middle).count());
  }
  return times;
}

void Report(const std::filesystem::path& path) {
  const size_t entry_bytes = std::stoul(path.stem().extension().string().substr(1));
  const std::vector<char> values = Read(path);
  const double gigabytes = static_cast<double>(values.size()) / 1e9;
  for (const StorageFormat format : {StorageFormat::kExact, StorageFormat::kLz4, StorageFormat::kZstd,
                                     StorageFormat::kFloat16, StorageFormat::kBFloat16, StorageFormat::kInt8}) {
    const Times times = Measure(values, entry_bytes, format);
    std::printf("%-24s %4zu KiB  %-5s  size %.2f  written at %5.2f GB/s  read at %5.2f GB/s",
                path.stem().stem().c_str(), entry_bytes >> 10, StorageFormatName(format),
                static_cast<double>(times.bytes) / static_cast<double>(values.size()), gigabytes / times.write,
                gigabytes / times.read);
    if (Rounds(format)) {
      std::printf("  rounded by %.1e, at most %.1e", times.rounding.root_mean_square(), times.rounding.largest());
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace egeria::cache

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: cache_format_benchmark NAME.BYTES.f32 ...\n");
    return 2;
  }
  for (int i = 1; i < argc; ++i) egeria::cache::Report(argv[i]);
  return 0;
}

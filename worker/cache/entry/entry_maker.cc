#include "worker/cache/entry/entry_maker.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/log.h"

namespace egeria::cache {
namespace {

// The report of a prefix is logged once it covers this many entries.
constexpr int64_t kTellAfter = 100;

}  // namespace

PendingEntry::PendingEntry(const Fingerprint& of, uint64_t of_sample, uint64_t hash,
                           std::span<const EntryTensor> of_tensors)
    : prefix(of),
      sample(of_sample),
      input_hash(hash),
      tensors(of_tensors.begin(), of_tensors.end()),
      exact_bytes(EntrySize(of_tensors)) {
  size_t bytes = 0;
  for (const EntryTensor& tensor : tensors) bytes += BytesOf(tensor);
  values.resize(bytes);
  size_t at = 0;
  for (EntryTensor& tensor : tensors) {
    const size_t size = BytesOf(tensor);
    if (size > 0) std::memcpy(values.data() + at, tensor.data, size);
    tensor.data = values.data() + at;
    at += size;
  }
}

std::vector<std::byte> EntryMaker::Make(PendingEntry entry) {
  RoundingError rounding;
  std::vector<std::byte> made =
      WriteEntry({name_, entry.prefix, entry.sample}, entry.input_hash, entry.tensors, format_, &rounding);
  if (format_ == StorageFormat::kExact) return made;
  Report report;
  {
    const MutexLock lock(&mutex_);
    if (entry.prefix != prefix_) report_ = {};
    prefix_ = entry.prefix;
    ++report_.entries;
    report_.exact_bytes += static_cast<int64_t>(entry.exact_bytes);
    report_.bytes += static_cast<int64_t>(made.size());
    report_.rounding.Add(rounding);
    report = report_;
  }
  if (report.entries == kTellAfter) Tell(report);
  return made;
}

EntryMaker::Report EntryMaker::report() const {
  const MutexLock lock(&mutex_);
  return report_;
}

void EntryMaker::Tell(const Report& report) const {
  const double share = static_cast<double>(report.bytes) / static_cast<double>(report.exact_bytes);
  std::string text = absl::StrFormat("the cache's entries as %s take %.0f %% of their exact size",
                                     StorageFormatName(format_), 100 * share);
  if (Rounds(format_)) {
    absl::StrAppendFormat(&text, "; rounding changes values by %.1e of their root mean square, and by %.1e at most",
                          report.rounding.root_mean_square(), report.rounding.largest());
  }
  LogInfo(text);
}

}  // namespace egeria::cache

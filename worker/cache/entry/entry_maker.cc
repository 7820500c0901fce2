#include "worker/cache/entry/entry_maker.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/log.h"

namespace egeria::cache {
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
  const StorageFormat format = Choose(entry.prefix);
  RoundingError rounding;
  std::vector<std::byte> made =
      WriteEntry({name_, entry.prefix, entry.sample}, entry.input_hash, entry.tensors, format, &rounding);
  if (format == StorageFormat::kExact) return made;
  Report report;
  {
    const MutexLock lock(&mutex_);
    ++report_.entries;
    report_.exact_bytes += static_cast<int64_t>(entry.exact_bytes);
    report_.bytes += static_cast<int64_t>(made.size());
    report_.rounding.Add(rounding);
    report = report_;
  }
  if (report.entries == kTrial) Tell(format, report);
  return made;
}

void EntryMaker::NoteFullness(double fullness) {
  const MutexLock lock(&mutex_);
  crowded_ = fullness > kCrowded;
}

StorageFormat EntryMaker::Choose(const Fingerprint& prefix) {
  const MutexLock lock(&mutex_);
  if (prefix != prefix_) report_ = {};
  prefix_ = prefix;
  if (!wanted_.automatic) return wanted_.format;
  const bool compresses = report_.entries < kTrial || ShareOf(report_) <= kWorthwhile;
  return crowded_ && compresses ? StorageFormat::kZstd : StorageFormat::kExact;
}

double EntryMaker::ShareOf(const Report& report) {
  return static_cast<double>(report.bytes) / static_cast<double>(report.exact_bytes);
}

EntryMaker::Report EntryMaker::report() const {
  const MutexLock lock(&mutex_);
  return report_;
}

void EntryMaker::Tell(StorageFormat format, const Report& report) const {
  const double share = ShareOf(report);
  std::string text = absl::StrFormat("the cache's entries as %s take %.0f %% of their exact size",
                                     StorageFormatName(format), 100 * share);
  if (Rounds(format)) {
    absl::StrAppendFormat(&text, "; rounding changes values by %.1e of their root mean square, and by %.1e at most",
                          report.rounding.root_mean_square(), report.rounding.largest());
  }
  if (wanted_.automatic) {
    absl::StrAppend(&text, share <= kWorthwhile ? ", and are kept like that, as the quota is more than half full"
                                                : ", which is not worth it: they are kept as they are");
  }
  LogInfo(text);
}

}  // namespace egeria::cache

#include "controller/job/journal_marks.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "xxhash.h"

namespace egeria::controller {
namespace {

// The file is a row of slots. The first one has the magic and the boot; each other one has a job, or zeros.
constexpr size_t kSlot = 64;
constexpr size_t kChecked = kSlot - sizeof(uint64_t);  // bytes that the checksum at the end covers
constexpr size_t kIdLength = 36;
constexpr char kMagic[] = "egeria-marks 1\n";

// Differs after each start of the machine; empty where the kernel does not tell.
std::string BootId() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id.substr(0, kIdLength);
}

std::string Sealed(std::string slot) {
  slot.resize(kChecked, '\0');
  const uint64_t checksum = XXH3_64bits(slot.data(), slot.size());
  return slot.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
}

std::string HeaderSlot() { return Sealed(kMagic + BootId()); }

std::string JobSlot(const JobId& job, const JournalMarks::Mark& mark) {
  return Sealed(job.text() + std::string(reinterpret_cast<const char*>(&mark), sizeof(mark)));
}

}  // namespace

JournalMarks::JournalMarks(std::string path) : path_(std::move(path)) {
  std::ifstream file(path_, std::ios::binary);
  if (file) Read(std::string(std::istreambuf_iterator<char>(file), {}));
}

JournalMarks::~JournalMarks() {
  if (file_ >= 0) close(file_);
}

void JournalMarks::Read(const std::string& bytes) {
  const bool same_boot = !BootId().empty() && bytes.compare(0, kSlot, HeaderSlot()) == 0;
  const std::string empty(kSlot, '\0');
  for (size_t at = kSlot; at < bytes.size(); at += kSlot) {
    const std::string slot = bytes.substr(at, kSlot);
    if (slot == empty) continue;
    if (slot.size() < kSlot || Sealed(slot.substr(0, kChecked)) != slot) {
      ++unreadable_;
      continue;
    }
    Mark mark;
    std::memcpy(&mark, slot.data() + kIdLength, sizeof(mark));
    due_[JobId(slot.substr(0, kIdLength))] = same_boot ? mark.appended : mark.synced;
  }
}

std::string JournalMarks::Begin(const std::map<JobId, int64_t>& synced) {
  if (file_ >= 0) close(std::exchange(file_, -1));
  slots_.clear();
  unsynced_.clear();
  next_slot_ = 1;
  std::string bytes = HeaderSlot();
  for (const auto& [job, last] : synced) {
    bytes += JobSlot(job, {last, last});
    slots_[job] = {next_slot_++, {last, last}};
  }
  const std::string made = path_ + ".new";
  const int file = open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool written = file >= 0 && write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  // Synced, since the name must not outlive the bytes of a new file.
  written = written && fdatasync(file) == 0 && std::rename(made.c_str(), path_.c_str()) == 0;
  if (!written) {
    std::string why = std::strerror(errno);
    if (file >= 0) close(file);
    return why;
  }
  file_ = file;
  return "";
}

void JournalMarks::Appended(const JobId& job, int64_t sequence) {
  const auto [slot, is_new] = slots_.try_emplace(job, Slot{next_slot_, {}});
  if (is_new) ++next_slot_;
  slot->second.mark.appended = sequence;
  unsynced_.insert(job);
  Write(slot->second.number, JobSlot(job, slot->second.mark));
}

void JournalMarks::Synced() {
  for (const JobId& job : unsynced_) {
    Slot& slot = slots_.at(job);
    slot.mark.synced = slot.mark.appended;
    Write(slot.number, JobSlot(job, slot.mark));
  }
  unsynced_.clear();
}

void JournalMarks::Clear(const JobId& job) {
  const auto slot = slots_.find(job);
  if (slot == slots_.end()) return;
  slot->second.mark = {};
  unsynced_.erase(job);
  Write(slot->second.number, std::string(kSlot, '\0'));
}

void JournalMarks::Write(size_t slot, const std::string& bytes) {
  if (file_ < 0) return;
  // A mark that is not written leaves the older one, which claims less.
  if (pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(slot * kSlot)) < 0) return;
}

}  // namespace egeria::controller

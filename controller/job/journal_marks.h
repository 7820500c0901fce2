#ifndef EGERIA_CONTROLLER_JOB_JOURNAL_MARKS_H_
#define EGERIA_CONTROLLER_JOB_JOURNAL_MARKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "common/base/ids.h"

namespace egeria::controller {

// A file beside the journal that says how far each job's records must reach: the last one that was appended, and the
// last one that was synced to the disk. So a start can tell what a crash of the machine may take, which is what was
// appended and not synced, from what has been lost. docs/reference/formats/journal.md describes the file.
//
// A mark is written after what it is about, and never synced: it may say too little, and never too much. Where the file
// cannot be written, no mark is kept. Thread-compatible.
class JournalMarks {
 public:
  struct Mark {
    int64_t appended = 0;  // sequence numbers
    int64_t synced = 0;
  };

  // Reads the file, if there is one. Nothing is written before Begin().
  explicit JournalMarks(std::string path);
  JournalMarks(const JournalMarks&) = delete;
  JournalMarks& operator=(const JournalMarks&) = delete;
  ~JournalMarks();

  // The last record that each job must have, as the file said when it was read: the last appended one if the machine
  // has not been started anew since, else the last synced one.
  const std::map<JobId, int64_t>& due() const { return due_; }
  // The marks of the file that could not be read.
  int64_t unreadable() const { return unreadable_; }

  // Writes the file anew, with jobs whose records all are synced. Empty where that worked, else the reason.
  std::string Begin(const std::map<JobId, int64_t>& synced);
  // The job has records up to this one.
  void Appended(const JobId& job, int64_t sequence);
  // All records of all jobs are synced.
  void Synced();
  void Clear(const JobId& job);

 private:
  void Read(const std::string& bytes);
  struct Slot {
    size_t number = 0;
    Mark mark;
  };
  void Write(size_t slot, const std::string& bytes);

  const std::string path_;
  int file_ = -1;  // open from Begin() on
  std::map<JobId, int64_t> due_;
  int64_t unreadable_ = 0;
  std::map<JobId, Slot> slots_;
  std::set<JobId> unsynced_;
  size_t next_slot_ = 1;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOURNAL_MARKS_H_

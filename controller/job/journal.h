#ifndef EGERIA_CONTROLLER_JOB_JOURNAL_H_
#define EGERIA_CONTROLLER_JOB_JOURNAL_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/monotonic.h"
#include "controller/job/journal_marks.h"
#include "egeria/storage/v1/journal.pb.h"

namespace rocksdb {
class DB;
class Env;
class Status;
}  // namespace rocksdb

namespace egeria::controller {

struct JournalOptions {
  rocksdb::Env* env = nullptr;                  // null: the machine's own; tests let writes fail
  absl::Duration retry = absl::Seconds(1);      // pause between attempts to write what a disk could not take
  size_t max_backlog_bytes = size_t{64} << 20;  // for records that wait for the disk in memory
};

// The controller's durable memory: the facts of every job, in a RocksDB of its own folder.
// docs/reference/formats/journal.md describes the keys and values, and what is done about damage.
//
// Every append is in the write-ahead log when it returns, and so survives the end of this process in any case. A synced
// append, and all before it, also survive the end of the machine. While the disk cannot be written, appends wait in
// memory instead, in order, and health() says so. Only one process at a time may hold a folder.
//
// Thread-compatible: its owner serialises the calls. The destructor syncs and closes.
class Journal {
 public:
  // Replay() calls it with each record. A status other than OK ends the job's history before this record.
  using Visitor = std::function<absl::Status(const JobId&, int64_t sequence, const storage::v1::Fact&)>;

  // A job of which not all could be read back. Its history ends before the first record that is missing or wrong. The
  // records from there on are set aside under keys of their own.
  struct Damaged {
    JobId job;
    std::string reason;
    int64_t kept = 0;   // records before the damage; 0: the job id is free again
    int64_t aside = 0;  // records that were set aside
    int64_t lost = 0;   // records that should be there and are not
  };

  // Opens the journal in `folder`, which is made if it does not exist.
  // Errors: FAILED_PRECONDITION [STATE_DIR_IN_USE] another process has it open, [JOURNAL_VERSION] a version with
  // another format has written it; DATA_LOSS [JOURNAL_DAMAGED] its tables or their list cannot be read;
  // PERMISSION_DENIED or UNAVAILABLE [JOURNAL] the folder cannot be made, read or written, or its disk is full.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& folder, const JournalOptions& options = {});

  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal();

  // Reads every record, job by job in the order of sequence. Where records are lost, it keeps a copy of the logs in a
  // folder beside the journal. To be called once, before anything is appended.
  // Errors: DATA_LOSS [JOURNAL_DAMAGED]; UNAVAILABLE [JOURNAL].
  absl::StatusOr<std::vector<Damaged>> Replay(const Visitor& visit);

  // Appends either all of the facts or none, with sequence numbers from first_sequence on. Sequence numbers of a job
  // start at 1 and have no gaps; the caller counts.
  // Errors: UNAVAILABLE [JOURNAL] the disk cannot be written, and no more may wait in memory; nothing is appended.
  absl::Status Append(const JobId& job, int64_t first_sequence, const std::vector<storage::v1::Fact>& facts, bool sync);

  // Forgets all records of a job. Errors: those of Append().
  absl::Status Remove(const JobId& job);

  // Makes everything appended so far survive the end of the machine. Errors: UNAVAILABLE [JOURNAL].
  absl::Status Sync();

  // Writes what waits in memory, if it can be written again, keeps the journal's time, and looks whether the folder is
  // still there: one that has vanished is made anew with all that it held. To be called every second or so.
  void Tend();

  // The journal's own time. It begins as the wall clock's and goes on while a controller has the journal open, whatever
  // the clock is set to. After a restart it goes on from where it was, some seconds ahead. Thread-safe.
  absl::Time Now() const;

  // OK, or what is wrong with the disk.
  absl::Status health() const;
  size_t backlog_bytes() const { return backlog_bytes_; }
  // Writes and attempts to open the database that have failed.
  int64_t errors() const { return errors_; }

  // The key of a record, for tests that damage one.
  static std::string KeyForTest(const JobId& job, int64_t sequence);

 private:
  using Marks = std::map<JobId, int64_t>;  // the last sequence number of each job
  // Facts of a job that are written together.
  struct Record {
    std::string batch;  // serialised
    JobId job;
    int64_t last = 0;  // the last sequence number that it has of the job; 0: none
  };

  Journal(std::string folder, const JournalOptions& options);
  absl::Status OpenDatabase();
  absl::Status CheckVersion();
  absl::Status StartClock();
  // Says what is to be done about an error of the database.
  absl::Status Explain(const rocksdb::Status& status) const;
  // Reads from damaged logs what the database has left out.
  absl::Status ReadDamagedLogs();
  // Reads all records, and returns those damaged by what the records say. `last` gets the last good record of each job.
  absl::StatusOr<std::vector<Damaged>> ReadAll(const Visitor& visit, Marks* last);
  // Adds what the marks say should be there.
  void AddLost(const Marks& last, std::vector<Damaged>* damaged) const;
  // Sets the records of a job from `first` on aside, and returns their number. Errors: UNAVAILABLE [JOURNAL].
  absl::StatusOr<int64_t> SetAside(const JobId& job, int64_t first);
  // Writes the record, or lets it wait in memory. Errors: those of Append().
  absl::Status Write(Record record, bool sync);
  // Writes what waits, if the last attempt is long enough ago or `at_once`. Errors: UNAVAILABLE [JOURNAL].
  absl::Status CatchUp(bool at_once);
  absl::Status WriteBacklog();
  // Lets everything in the database wait in memory, to be written to a new one.
  void TakeIntoMemory();
  // A folder with the logs as they were when the journal was opened.
  std::string LogCopies() const { return folder_ + ".logs"; }

  const std::string folder_;
  const JournalOptions options_;
  std::unique_ptr<rocksdb::DB> db_;  // null where it could not be opened anew
  ino_t lock_file_ = 0;              // inode of the database's lock
  JournalMarks marks_;

  absl::Time clock_start_ = absl::Now();  // the journal's time when it was opened
  const absl::Time opened_at_ = MonotonicNow();
  absl::Time clock_kept_ = absl::InfinitePast();  // the journal's time that was written last

  std::deque<Record> backlog_;  // oldest first
  size_t backlog_bytes_ = 0;
  absl::Status last_error_;                         // while something waits
  absl::Time next_attempt_ = absl::InfinitePast();  // monotonic
  int64_t errors_ = 0;
  int64_t damaged_places_ = 0;  // in the logs, when it was opened
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOURNAL_H_

#ifndef EGERIA_CONTROLLER_JOB_JOURNAL_H_
#define EGERIA_CONTROLLER_JOB_JOURNAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "egeria/storage/v1/journal.pb.h"

namespace rocksdb {
class DB;
class Env;
}  // namespace rocksdb

namespace egeria::controller {

struct JournalOptions {
  rocksdb::Env* env = nullptr;              // null: the machine's own; tests let writes fail
  absl::Duration retry = absl::Seconds(1);  // pause between attempts to open a database that failed
};

// The controller's durable memory: the facts of every job, in a RocksDB of its own folder. docs/formats/journal.md
// describes the keys and values.
//
// Every append is in the write-ahead log when it returns, and so survives the end of this process in any case. A synced
// append, and all before it, also survive the end of the machine. Only one process at a time may hold a folder.
//
// Thread-compatible: its owner serialises the calls. The destructor syncs and closes.
class Journal {
 public:
  // Replay() calls it with each record. A status other than OK quarantines the job: none of its further records are
  // read.
  using Visitor = std::function<absl::Status(const JobId&, int64_t sequence, const storage::v1::Fact&)>;

  // A job that could not be read back, and the reason. Its records are kept aside under keys of their own, and the job
  // id is free again.
  struct Quarantined {
    JobId job;
    std::string reason;
    int64_t records = 0;  // the number of those set aside
  };

  // Opens the journal in `folder`, which is made if it does not exist.
  // Errors: FAILED_PRECONDITION [STATE_DIR_IN_USE] another process has it open, [JOURNAL_VERSION] a version with
  // another format has written it; PERMISSION_DENIED, NOT_FOUND or UNAVAILABLE [JOURNAL] the folder cannot be made,
  // read or written.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& folder, const JournalOptions& options = {});

  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal();

  // Reads every record, job by job in the order of sequence. A job with a record that is corrupt, missing or refused by
  // `visit` is set aside; the others are read all the same.
  // Errors: UNAVAILABLE [JOURNAL] the database itself cannot be read.
  absl::StatusOr<std::vector<Quarantined>> Replay(const Visitor& visit);

  // Appends either all of the facts or none, with sequence numbers from first_sequence on. Sequence numbers of a job
  // start at 1 and have no gaps; the caller counts.
  // Errors: UNAVAILABLE [JOURNAL] none of the facts is in the journal. A later append opens the database anew, since a
  // disk that was full may have room again.
  absl::Status Append(const JobId& job, int64_t first_sequence, const std::vector<storage::v1::Fact>& facts, bool sync);

  // Forgets all records of a job. Errors: UNAVAILABLE [JOURNAL].
  absl::Status Remove(const JobId& job);

  // Makes everything appended so far survive the end of the machine. Errors: UNAVAILABLE [JOURNAL].
  absl::Status Sync();

  // The key of a record, for tests that damage one.
  static std::string KeyForTest(const JobId& job, int64_t sequence);

 private:
  // The facts of an append that failed. Some of them may have reached the log all the same.
  struct Doubtful {
    JobId job;
    int64_t first_sequence = 0;
  };

  Journal(std::string folder, const JournalOptions& options);
  absl::Status OpenDatabase();
  absl::Status CheckVersion();
  // Sets the records of a job aside and returns their number. Errors: UNAVAILABLE [JOURNAL].
  absl::StatusOr<int64_t> SetAside(const JobId& job);
  // OK where the database can be used. After a failed append it opens the database anew and removes the doubtful facts.
  absl::Status EnsureUsable();

  const std::string folder_;
  const JournalOptions options_;
  std::unique_ptr<rocksdb::DB> db_;  // null where it could not be opened anew
  std::optional<Doubtful> doubtful_;
  absl::Status last_error_;  // while doubtful_
  absl::Time next_attempt_ = absl::InfinitePast();
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOURNAL_H_

#ifndef EGERIA_CONTROLLER_SERVICE_AUDIT_LOG_H_
#define EGERIA_CONTROLLER_SERVICE_AUDIT_LOG_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/rpc/peer.h"
#include "common/thread/mutex.h"

namespace egeria::controller {

// Who has changed what by hand, and who was refused: a file with one line of JSON for each, which only grows. Whoever
// rotates it renames the file and lets Reopen() begin another one. docs/reference/formats/audit.md describes the lines.
// Thread-safe.
class AuditLog {
 public:
  // The file is made for this user alone. Errors: UNAVAILABLE [AUDIT_LOG] it cannot be opened; those of CheckPrivate().
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path);
  ~AuditLog();

  struct Record {
    absl::string_view action;  // such as "set_frozen_prefix"
    absl::string_view job;     // its id
    std::string before;        // JSON; "": not known
    std::string after;         // JSON; "": nothing changes
    absl::string_view reason;
  };
  // A record that cannot be written goes to the log, as an error: what was done stands.
  void Write(const rpc::Peer& caller, const Record& record, const absl::Status& outcome) ABSL_LOCKS_EXCLUDED(mutex_);

  // Opens the file anew, and makes it where it has gone. Where that fails it goes on with the old one, with an error in
  // the log.
  void Reopen() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  AuditLog(std::string path, int file) : path_(std::move(path)), file_(file) {}

  const std::string path_;
  Mutex mutex_;
  int file_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_SERVICE_AUDIT_LOG_H_

#include "controller/service/audit_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/base/private_folder.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace egeria::controller {
namespace {

absl::StatusOr<int> OpenFile(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file >= 0) {
    const absl::Status checked = CheckPrivate(path);
    if (checked.ok()) return file;
    close(file);
    return checked;
  }
  return NamedError(absl::StatusCode::kUnavailable, "AUDIT_LOG", path, " cannot be opened: ", std::strerror(errno));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& path) {
  EGERIA_ASSIGN_OR_RETURN(const int file, OpenFile(path));
  return std::unique_ptr<AuditLog>(new AuditLog(path, file));
}

AuditLog::~AuditLog() { close(file_); }

void AuditLog::Write(const rpc::Peer& caller, const Record& record, const absl::Status& outcome) {
  nlohmann::ordered_json line = {
      {"time", absl::FormatTime(absl::RFC3339_full, absl::Now(), absl::UTCTimeZone())},
      {"who", caller.identity.empty() ? "unknown" : caller.identity},
      {"where", caller.place},
      {"action", record.action},
      {"job", record.job},
  };
  if (!record.before.empty()) line["before"] = nlohmann::ordered_json::parse(record.before);
  if (!record.after.empty()) line["after"] = nlohmann::ordered_json::parse(record.after);
  if (!record.reason.empty()) line["reason"] = record.reason;
  line["outcome"] = outcome.ok() ? "done" : std::string(outcome.message());
  // All that is no ASCII is escaped, so that no name can look like anything else.
  const std::string text = line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const MutexLock lock(&mutex_);
  if (write(file_, text.data(), text.size()) == static_cast<ssize_t>(text.size())) return;
  LogError(path_, " cannot be written (", std::strerror(errno), "): ", text.substr(0, text.size() - 1));
}

void AuditLog::Reopen() {
  const absl::StatusOr<int> file = OpenFile(path_);
  if (!file.ok()) return LogError(std::string(file.status().message()));
  const MutexLock lock(&mutex_);
  close(std::exchange(file_, *file));
}

}  // namespace egeria::controller

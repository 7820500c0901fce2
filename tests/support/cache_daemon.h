#ifndef EGERIA_TESTS_SUPPORT_CACHE_DAEMON_H_
#define EGERIA_TESTS_SUPPORT_CACHE_DAEMON_H_

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_folder.h"
#include "worker/cache/client/cache_client.h"

namespace egeria::testing {

// False where the condition has not come true in time.
bool WaitUntil(const std::function<bool()>& condition, std::chrono::seconds patience = std::chrono::seconds(20));

// A real egeria-cache in a folder of its own. CHECKs where it does not start.
class CacheDaemon {
 public:
  explicit CacheDaemon(std::vector<std::string> arguments = {}) { Start(std::move(arguments)); }

  void Start(std::vector<std::string> arguments = {});
  void Signal(int signal) { process_->Signal(signal); }
  pid_t pid() const { return process_->pid(); }
  int End(int signal);  // the exit code, as ChildProcess::Wait() gives it

  // An attached client.
  std::unique_ptr<cache::CacheClient> Connect(const JobId& job = JobId("0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11"),
                                              size_t shared_bytes = size_t{1} << 20,
                                              absl::Duration patience = absl::Seconds(2)) const;
  std::string address() const { return "unix:" + (folder_ / "store/cache.sock"); }
  std::filesystem::path store() const { return folder_ / "store"; }
  const TempFolder& folder() const { return folder_; }

 private:
  TempFolder folder_;
  std::optional<ChildProcess> process_;
};

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_CACHE_DAEMON_H_

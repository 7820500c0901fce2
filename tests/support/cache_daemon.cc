#include "tests/support/cache_daemon.h"

#include <thread>

#include "common/base/status.h"
#include "common/rpc/address.h"

namespace egeria::testing {

bool WaitUntil(const std::function<bool()>& condition, std::chrono::seconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

void CacheDaemon::Start(std::vector<std::string> arguments) {
  std::vector<std::string> command = {EGERIA_CACHE, "--folder", store().string(), "--keep-free", "0",
                                      "--ready-fd", "1"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  auto process = ChildProcess::Start(command, {}, folder_ / "log");
  EGERIA_CHECK(process.ok());
  process_.emplace(*std::move(process));
  EGERIA_CHECK(process_->ReadLine() == "READY=1");
}

int CacheDaemon::End(int signal) {
  process_->Signal(signal);
  const int code = process_->Wait();
  process_.reset();
  return code;
}

std::unique_ptr<cache::CacheClient> CacheDaemon::Connect(const JobId& job, size_t shared_bytes,
                                                         absl::Duration patience) const {
  cache::CacheClient::Options options;
  options.address = *rpc::ParseAddress(address());
  options.name = job;
  options.shared_bytes = shared_bytes;
  options.patience = patience;
  auto client = cache::CacheClient::Start(options);
  EGERIA_CHECK(WaitUntil([&] { return client->attached(); }));
  return client;
}

}  // namespace egeria::testing

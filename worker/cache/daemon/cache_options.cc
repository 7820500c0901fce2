#include "worker/cache/daemon/cache_options.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "worker/cache/entry/cache_folder.h"

namespace egeria::cache {
namespace {

using config::ByteCount;

config::ValueCheck<ByteCount> AtLeast(size_t least, const char* text, bool or_zero = false) {
  return [=](const ByteCount& bytes) -> std::string {
    if (bytes.value >= least || (or_zero && bytes.value == 0)) return "";
    return absl::StrCat("must be at least ", text);
  };
}

}  // namespace

config::OptionSet CacheOptionSet(CacheOptions* options) {
  config::OptionSet set("egeria-cache", "EGERIA_CACHE_",
                        "keeps what the frozen front of a model gives, for the training processes of a node",
                        Version());
  set.Add("listen", &options->listen, "Address, unix:/path (empty: unix:<folder>/cache.sock)")
      .Add("folder", &options->folder, "Folder of the entries, which one egeria-cache at a time may use")
      .Add("quota", &options->quota, "Disk space for the entries of all jobs together",
           AtLeast(size_t{1} << 20, "1MiB"))
      .Add("soft_quota", &options->soft_quota,
           "Disk space beyond which entries of ended jobs and of outdated prefixes are deleted (0: as quota)",
           AtLeast(size_t{1} << 20, "1MiB", true))
      .Add("quota_per_job", &options->quota_per_job, "Disk space for the entries of each job (0: as quota)",
           AtLeast(size_t{1} << 20, "1MiB", true))
      .Add("keep_free", &options->keep_free, "Space that the cache leaves free on its file system")
      .Add("write_buffer", &options->write_buffer, "Memory for entries that are not yet written",
           AtLeast(size_t{1} << 20, "1MiB"))
      .Add("memory", &options->memory, "Memory for entries of up to 64 KiB, which are on the disk as well (0: none)")
      .Add("metrics_listen", &options->metrics_listen, "Address of the Prometheus endpoint, host:port (none: off)")
      .Add("insecure", &options->insecure, "Serve the metrics to other machines")
      .Add("log_level", &options->log_level, "Lowest level that is logged",
           config::OneOf({"debug", "info", "warning", "error"}))
      .Add("ready_fd", &options->ready_fd,
           "File descriptor that is told when the cache is ready, or why it is not (-1: none)")
      .Add("until_unused", &options->until_unused,
           "End when no egeria-run uses the folder and no training process is attached");
  // These variables of the environment are meant for the training processes.
  for (const char* variable : {"USE", "PRECISION", "COMPRESSION", "FORMAT", "JOB_QUOTA"}) {
    set.LeaveToOthers(absl::StrCat("EGERIA_CACHE_", variable));
  }
  set.AddCheck([options]() -> absl::Status {
    if (options->soft_quota.value <= options->quota.value) return absl::OkStatus();
    return absl::InvalidArgumentError("soft_quota: must not be more than quota");
  });
  set.AddCheck([options]() -> absl::Status {
    const auto metrics = rpc::ParseAddress(options->metrics_listen);
    if (!metrics.ok() || metrics->IsLocal() || options->insecure) return absl::OkStatus();
    return NamedError(absl::StatusCode::kFailedPrecondition, "INSECURE_ADDRESS",
                      "other machines could read the metrics at ", options->metrics_listen,
                      ": serve them at 127.0.0.1, or say --insecure");
  });
  set.AddCheck([options]() -> absl::Status {
    EGERIA_ASSIGN_OR_RETURN(const rpc::Address address, ListenAddress(*options));
    if (address.is_unix()) return absl::OkStatus();
    return absl::InvalidArgumentError("listen: a cache serves its own node only; give unix:/path");
  });
  return set;
}

absl::StatusOr<rpc::Address> ListenAddress(const CacheOptions& options) {
  return rpc::ParseAddress(options.listen.empty() ? DefaultAddress(options.folder) : options.listen);
}

ActivationStore::Options StoreOptions(const CacheOptions& options) {
  return {.folder = options.folder,
          .quota_bytes = static_cast<int64_t>(options.quota.value),
          .soft_quota_bytes = static_cast<int64_t>(options.soft_quota.value),
          .namespace_quota_bytes = static_cast<int64_t>(options.quota_per_job.value),
          .free_bytes = static_cast<int64_t>(options.keep_free.value),
          .write_buffer_bytes = static_cast<int64_t>(options.write_buffer.value),
          .memory_bytes = static_cast<int64_t>(options.memory.value)};
}

}  // namespace egeria::cache

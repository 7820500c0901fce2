#ifndef EGERIA_WORKER_CACHE_DAEMON_CACHE_OPTIONS_H_
#define EGERIA_WORKER_CACHE_DAEMON_CACHE_OPTIONS_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "common/config/option_set.h"
#include "common/config/values.h"
#include "common/rpc/address.h"
#include "worker/cache/daemon/activation_store.h"

namespace egeria::cache {

// The options of egeria-cache. deploy/egeria-cache.yaml documents each option.
struct CacheOptions {
  std::string listen;  // empty: unix:<folder>/cache.sock
  std::string folder;
  config::ByteCount quota{size_t{32} << 30};
  config::ByteCount soft_quota{0};
  config::ByteCount quota_per_job{0};
  config::ByteCount keep_free{size_t{2} << 30};
  config::ByteCount write_buffer{size_t{64} << 20};
  config::ByteCount memory{size_t{1} << 30};
  std::string metrics_listen = "none";
  bool insecure = false;
  std::string log_level = "info";
  int ready_fd = -1;
  bool until_unused = false;
};

// The fields of `options` by name, for Load(). `options` must outlive the set.
config::OptionSet CacheOptionSet(CacheOptions* options);

// The address of the options, or the default where they have none. Errors: those of rpc::ParseAddress.
absl::StatusOr<rpc::Address> ListenAddress(const CacheOptions& options);

ActivationStore::Options StoreOptions(const CacheOptions& options);

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_CACHE_OPTIONS_H_

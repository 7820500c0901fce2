#ifndef EGERIA_WORKER_CACHE_DAEMON_CACHE_SERVICE_H_
#define EGERIA_WORKER_CACHE_DAEMON_CACHE_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/thread/mutex.h"
#include "egeria/v1/cache.grpc.pb.h"
#include "worker/cache/daemon/activation_store.h"
#include "worker/cache/daemon/read_helpers.h"
#include "worker/cache/entry/shared_memory.h"

namespace egeria::cache {

// The service of egeria-cache, which proto/egeria/v1/cache.proto describes. Thread-safe. A session that ends while it
// is used stays until its calls have ended.
class CacheService final : public v1::Cache::Service {
 public:
  static constexpr size_t kMaxSessions = 1'024;

  struct Counters {
    int64_t sessions = 0;
    int64_t hits = 0;
    int64_t memory_hits = 0;  // among them, those that took no file
    int64_t misses = 0;
    int64_t bytes_read = 0;
    std::map<ActivationStore::Outcome, int64_t> puts;
    int64_t bytes_written = 0;
  };

  // `store` must outlive the service.
  explicit CacheService(ActivationStore* store) : store_(store) {}

  Counters counters() const;

  grpc::Status Attach(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::AttachResponse, v1::AttachRequest>* stream) override;
  grpc::Status Put(grpc::ServerContext* context, grpc::ServerReader<v1::PutRequest>* reader,
                   v1::PutResponse* response) override;
  grpc::Status Get(grpc::ServerContext* context, const v1::GetRequest* request,
                   grpc::ServerWriter<v1::GetResponse>* writer) override;
  grpc::Status Drop(grpc::ServerContext* context, const v1::DropRequest* request, v1::DropResponse* response) override;

 private:
  struct Session {
    JobId name;
    std::string connection;                // calls for the session come over it
    std::unique_ptr<SharedMemory> memory;  // null: bytes are streamed
    std::atomic<int64_t> streaming = 0;    // bytes that calls under way hold in memory
  };
  // A part of what a session may stream at once, given back in the end.
  class Streamed;

  absl::StatusOr<std::shared_ptr<Session>> Find(int64_t session, const grpc::ServerContext& context) const;
  absl::Status PutAll(const Session& session, const v1::PutRequest& first, std::span<const std::byte> bytes,
                      v1::PutResponse* response);
  grpc::Status GetShared(const Session& session, const Fingerprint& prefix, const v1::GetRequest& request,
                         grpc::ServerWriter<v1::GetResponse>* writer);
  grpc::Status GetStreamed(Session& session, const Fingerprint& prefix, const v1::GetRequest& request,
                           grpc::ServerWriter<v1::GetResponse>* writer);
  void CountReads(int64_t hits, int64_t asked, int64_t bytes, int64_t memory_hits = 0);

  ActivationStore* const store_;
  ReadHelpers helpers_;
  mutable Mutex mutex_;
  std::map<int64_t, std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mutex_);
  Counters counters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_DAEMON_CACHE_SERVICE_H_

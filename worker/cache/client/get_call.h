#ifndef EGERIA_WORKER_CACHE_CLIENT_GET_CALL_H_
#define EGERIA_WORKER_CACHE_CLIENT_GET_CALL_H_

#include <cstddef>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "egeria/v1/cache.grpc.pb.h"
#include "worker/cache/entry/shared_memory.h"

namespace egeria::cache {

// One call of Cache.Get(), which the daemon works at from the constructor on. For one thread.
class GetCall {
 public:
  // `memory`: where the entries come to lie, as the request says; null where they are streamed.
  GetCall(v1::Cache::Stub* stub, const v1::GetRequest& request, std::shared_ptr<SharedMemory> memory,
          absl::Time deadline);
  // Cancels a call that was not finished. The daemon may still write into the memory.
  ~GetCall();

  // Calls `arrived` for each entry of the answer in order, while the daemon reads on; an empty one is not there. False
  // where not all came in time: then the daemon may still write into the memory. Once; but where `arrived` throws,
  // again for the entries behind, in shared memory.
  bool Finish(absl::FunctionRef<void(std::span<const std::byte> entry)> arrived);

 private:
  bool ReadShared(absl::FunctionRef<void(std::span<const std::byte> entry)> arrived);
  bool ReadStreamed(absl::FunctionRef<void(std::span<const std::byte> entry)> arrived);

  const std::shared_ptr<SharedMemory> memory_;
  const size_t offset_, stride_, wanted_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GetResponse>> reader_;  // null once finished
  size_t arrived_ = 0;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_GET_CALL_H_

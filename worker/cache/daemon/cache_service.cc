#include "worker/cache/daemon/cache_service.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/peer.h"
#include "common/thread/thread.h"

namespace egeria::cache {
namespace {

constexpr int kMaxSamples = 65'536;
constexpr size_t kChunk = size_t{1} << 20;  // bytes in a message
// One message reports this many bytes of entries in shared memory, since it costs as much as reading some hundred KiB.
constexpr int64_t kToldAtOnce = int64_t{4} << 20;
// One call streams no more bytes than this, since they are held in memory.
constexpr uint64_t kMaxStreamed = uint64_t{256} << 20;

template <typename... Args>
absl::Status BadMessage(const Args&... what) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", what...);
}

absl::StatusOr<Fingerprint> FingerprintOf(const std::string& bytes) {
  Fingerprint prefix;
  if (bytes.size() != prefix.size()) return BadMessage("a fingerprint has 16 bytes, not ", bytes.size());
  std::memcpy(prefix.data(), bytes.data(), bytes.size());
  return prefix;
}

// Checks the place of a call's entries: `count` slots of up to `stride` bytes from `offset` on.
absl::Status CheckSlots(int64_t offset, int64_t stride, int count, size_t memory) {
  if (count > kMaxSamples) return BadMessage("more than ", kMaxSamples, " samples");
  if (offset < 0 || stride < 0 || static_cast<uint64_t>(offset) > memory) return BadMessage("an offset of ", offset);
  if (count > 0 && static_cast<uint64_t>(stride) > (memory - static_cast<uint64_t>(offset)) / count) {
    return BadMessage(count, " entries of ", stride, " bytes from ", offset, " on do not fit into ", memory);
  }
  return absl::OkStatus();
}

int64_t RandomSession() {
  std::random_device device;
  return static_cast<int64_t>((uint64_t{device()} << 31 ^ device()) & std::numeric_limits<int64_t>::max()) | 1;
}

absl::string_view AsString(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

CacheService::Counters CacheService::counters() const {
  const MutexLock lock(&mutex_);
  Counters counters = counters_;
  counters.sessions = static_cast<int64_t>(sessions_.size());
  return counters;
}

class CacheService::Streamed {
 public:
  explicit Streamed(Session* session) : session_(*session) {}
  ~Streamed() { session_.streaming -= bytes_; }

  // Errors: RESOURCE_EXHAUSTED [TOO_MUCH_AT_ONCE].
  absl::Status Reserve(uint64_t bytes) {
    bytes_ = static_cast<int64_t>(bytes);
    if ((session_.streaming += bytes_) <= static_cast<int64_t>(kMaxStreamed)) return absl::OkStatus();
    return NamedError(absl::StatusCode::kResourceExhausted, "TOO_MUCH_AT_ONCE", "a session streams no more than ",
                      kMaxStreamed, " bytes at once");
  }

 private:
  Session& session_;
  int64_t bytes_ = 0;
};

absl::StatusOr<std::shared_ptr<CacheService::Session>> CacheService::Find(int64_t session,
                                                                          const grpc::ServerContext& context) const {
  const MutexLock lock(&mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second->connection != context.peer()) {
    return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_SESSION", "there is no session ", session);
  }
  return found->second;
}

grpc::Status CacheService::Attach(grpc::ServerContext* context,
                                  grpc::ServerReaderWriter<v1::AttachResponse, v1::AttachRequest>* stream) {
  v1::AttachRequest request;
  if (!stream->Read(&request)) return rpc::ToGrpc(BadMessage("the stream has no request"));
  auto session = std::make_shared<Session>();
  session->name = JobId(request.namespace_());
  if (!session->name.IsValid()) {
    return rpc::ToGrpc(NamedError(absl::StatusCode::kInvalidArgument, "BAD_NAMESPACE", "'", request.namespace_(),
                                  "' is not a UUID in lower case"));
  }
  session->connection = context->peer();
  if (request.shared_memory_bytes() > 0) {
    auto memory = SharedMemory::Open(rpc::PeerOf(*context).pid, request.shared_memory_descriptor(),
                                     static_cast<size_t>(request.shared_memory_bytes()));
    if (memory.ok()) {
      session->memory = *std::move(memory);
    } else {
      LogWarning("a session's bytes are streamed: ", memory.status().message());
    }
  }
  v1::AttachResponse response;
  {
    const MutexLock lock(&mutex_);
    if (sessions_.size() >= kMaxSessions) {
      return rpc::ToGrpc(NamedError(absl::StatusCode::kResourceExhausted, "TOO_MANY_SESSIONS", "there are ",
                                    kMaxSessions, " already"));
    }
    do {
      response.set_session(RandomSession());
    } while (!sessions_.try_emplace(response.session(), session).second);
  }
  response.set_shared_memory(session->memory != nullptr);
  response.set_quota_bytes(store_->Attach(session->name, request.quota_bytes()));
  const bool other = stream->Write(response) && stream->Read(&request);  // until the client ends it
  {
    const MutexLock lock(&mutex_);
    sessions_.erase(response.session());
  }
  store_->Detach(session->name);
  return other ? rpc::ToGrpc(BadMessage("a second request")) : grpc::Status::OK;
}

absl::Status CacheService::PutAll(const Session& session, const v1::PutRequest& first, std::span<const std::byte> bytes,
                                  v1::PutResponse* response) {
  EGERIA_ASSIGN_OR_RETURN(const Fingerprint prefix, FingerprintOf(first.fingerprint()));
  const absl::Duration begin = ThreadCpuTime();
  std::map<ActivationStore::Outcome, int64_t> outcomes;
  int64_t written = 0;
  size_t at = static_cast<size_t>(first.offset());
  for (int i = 0; i < first.samples_size(); ++i) {
    const auto outcome =
        store_->Put(session.name, prefix, first.samples(i), AsString(bytes.subspan(at, first.lengths(i))));
    ++outcomes[outcome];
    if (outcome == ActivationStore::Outcome::kStored) written += first.lengths(i);
    at += session.memory != nullptr ? static_cast<size_t>(first.stride()) : first.lengths(i);
  }
  response->set_stored(static_cast<uint32_t>(outcomes[ActivationStore::Outcome::kStored]));
  response->set_present(static_cast<uint32_t>(outcomes[ActivationStore::Outcome::kPresent]));
  response->set_over_quota(static_cast<uint32_t>(outcomes[ActivationStore::Outcome::kOverQuota]));
  response->set_no_space(static_cast<uint32_t>(outcomes[ActivationStore::Outcome::kNoSpace]));
  response->set_busy(static_cast<uint32_t>(outcomes[ActivationStore::Outcome::kBusy]));
  response->set_failed(static_cast<uint32_t>(outcomes[ActivationStore::Outcome::kFailed]));
  response->set_processor_seconds(absl::ToDoubleSeconds(ThreadCpuTime() - begin) + store_->WritingSeconds(written));
  response->set_fullness(store_->Fullness(session.name));
  const MutexLock lock(&mutex_);
  for (const auto& [outcome, count] : outcomes) counters_.puts[outcome] += count;
  counters_.bytes_written += written;
  return absl::OkStatus();
}

grpc::Status CacheService::Put(grpc::ServerContext* context, grpc::ServerReader<v1::PutRequest>* reader,
                               v1::PutResponse* response) {
  v1::PutRequest first;
  if (!reader->Read(&first)) return rpc::ToGrpc(BadMessage("the stream has no request"));
  const auto session = Find(first.session(), *context);
  if (!session.ok()) return rpc::ToGrpc(session.status());
  if (first.samples_size() != first.lengths_size()) return rpc::ToGrpc(BadMessage("as many lengths as samples"));
  if ((*session)->memory != nullptr) {
    const std::span<std::byte> memory = (*session)->memory->bytes();
    absl::Status status = CheckSlots(first.offset(), first.stride(), first.samples_size(), memory.size());
    for (const uint32_t length : first.lengths()) {
      if (status.ok() && length > first.stride()) status = BadMessage("an entry of ", length, " bytes");
    }
    if (status.ok()) status = PutAll(**session, first, memory, response);
    return rpc::ToGrpc(status);
  }
  uint64_t total = 0;
  for (const uint32_t length : first.lengths()) total += length;
  if (first.samples_size() > kMaxSamples || total > kMaxStreamed) {
    return rpc::ToGrpc(BadMessage(total, " bytes in one call"));
  }
  Streamed streamed(session->get());
  if (const absl::Status reserved = streamed.Reserve(total); !reserved.ok()) return rpc::ToGrpc(reserved);
  std::string bytes = std::move(*first.mutable_data());
  for (v1::PutRequest next; bytes.size() < total && reader->Read(&next);) bytes += next.data();
  if (bytes.size() != total) return rpc::ToGrpc(BadMessage(bytes.size(), " bytes instead of ", total));
  first.set_offset(0);
  return rpc::ToGrpc(PutAll(**session, first, std::as_bytes(std::span(bytes)), response));
}

grpc::Status CacheService::Get(grpc::ServerContext* context, const v1::GetRequest* request,
                               grpc::ServerWriter<v1::GetResponse>* writer) {
  const auto session = Find(request->session(), *context);
  if (!session.ok()) return rpc::ToGrpc(session.status());
  const auto prefix = FingerprintOf(request->fingerprint());
  if (!prefix.ok()) return rpc::ToGrpc(prefix.status());
  const bool shared = (*session)->memory != nullptr;
  const std::span<std::byte> memory = shared ? (*session)->memory->bytes() : std::span<std::byte>();
  const absl::Status slots = CheckSlots(request->offset(), shared ? request->stride() : 0, request->samples_size(),
                                        shared ? memory.size() : 0);
  if (shared && !slots.ok()) return rpc::ToGrpc(slots);
  if (request->samples_size() > kMaxSamples) return rpc::ToGrpc(BadMessage("more than ", kMaxSamples, " samples"));

  return shared ? GetShared(**session, *prefix, *request, writer) : GetStreamed(**session, *prefix, *request, writer);
}

grpc::Status CacheService::GetShared(const Session& session, const Fingerprint& prefix, const v1::GetRequest& request,
                                     grpc::ServerWriter<v1::GetResponse>* writer) {
  const int count = request.samples_size();
  const auto stride = static_cast<size_t>(request.stride());
  std::byte* const begin = session.memory->bytes().data() + request.offset();
  std::vector<int64_t> in_memory(count);
  const std::span<const uint64_t> samples(request.samples().data(), in_memory.size());
  const size_t on_disk = store_->GetFromMemory(session.name, prefix, samples, begin, stride, in_memory);
  const int64_t memory_hits = std::ranges::count_if(in_memory, [](int64_t length) { return length > 0; });
  std::atomic<int> next{0};
  std::vector<std::atomic<int64_t>> lengths(in_memory.begin(), in_memory.end());
  const auto read_one = [&] {
    const int i = next.fetch_add(1);
    if (i >= count) return false;
    if (lengths[i] != ActivationStore::kOnDisk) return true;
    const std::span<std::byte> slot(begin + i * stride, stride);
    lengths[i] = static_cast<int64_t>(store_->Get(session.name, prefix, request.samples(i), slot));
    return true;
  };

  // The client learns in steps which entries are there, from the first one on.
  int told = 0;
  bool good = true;
  int64_t hits = 0;
  int64_t bytes = 0;
  const auto tell = [&](int64_t at_least, grpc::WriteOptions options) {
    v1::GetResponse response;
    int64_t more = 0;
    int end = told;
    for (; end < count && lengths[end] >= 0; ++end) {
      response.add_lengths(static_cast<uint32_t>(lengths[end]));
      more += lengths[end];
    }
    if (end == told || more < at_least) return;
    for (const uint32_t length : response.lengths()) hits += length > 0;
    bytes += more;
    told = end;
    good = good && writer->Write(response, options);
  };
  const std::thread::id teller = std::this_thread::get_id();
  const auto read = [&] {
    while (read_one()) {
      if (std::this_thread::get_id() == teller) tell(kToldAtOnce, {});
    }
  };
  if (on_disk > 0) helpers_.Run(read);
  tell(0, grpc::WriteOptions().set_last_message());  // goes together with the status
  CountReads(hits, count, bytes, memory_hits);
  return good ? grpc::Status::OK : grpc::Status::CANCELLED;
}

grpc::Status CacheService::GetStreamed(Session& session, const Fingerprint& prefix, const v1::GetRequest& request,
                                       grpc::ServerWriter<v1::GetResponse>* writer) {
  v1::GetResponse response;
  const auto stride = static_cast<uint64_t>(std::max<int64_t>(request.stride(), 0));
  Streamed reserved(&session);
  const uint64_t most = std::min(kMaxStreamed, std::min(stride, kMaxStreamed) * request.samples_size());
  if (const absl::Status status = reserved.Reserve(most); !status.ok()) return rpc::ToGrpc(status);
  std::string streamed;
  size_t filled = 0;
  int64_t hits = 0;
  for (const uint64_t sample : request.samples()) {
    streamed.resize(std::max(streamed.size(), filled + std::min(stride, kMaxStreamed - filled)));
    const std::span<std::byte> rest = std::as_writable_bytes(std::span(streamed)).subspan(filled);
    const size_t length = store_->Get(session.name, prefix, sample, rest.first(std::min(stride, rest.size())));
    response.add_lengths(static_cast<uint32_t>(length));
    hits += length > 0;
    filled += length;
  }
  streamed.resize(filled);
  CountReads(hits, request.samples_size(), static_cast<int64_t>(streamed.size()));
  size_t sent = 0;
  do {
    response.set_data(streamed.substr(sent, kChunk));
    sent += response.data().size();
    if (!writer->Write(response)) return grpc::Status::CANCELLED;
    response.Clear();
  } while (sent < streamed.size());
  return grpc::Status::OK;
}

void CacheService::CountReads(int64_t hits, int64_t asked, int64_t bytes, int64_t memory_hits) {
  const MutexLock lock(&mutex_);
  counters_.hits += hits;
  counters_.memory_hits += memory_hits;
  counters_.misses += asked - hits;
  counters_.bytes_read += bytes;
}

grpc::Status CacheService::Drop(grpc::ServerContext* context, const v1::DropRequest* request,
                                v1::DropResponse* response) {
  const auto session = Find(request->session(), *context);
  if (!session.ok()) return rpc::ToGrpc(session.status());
  const auto prefix = FingerprintOf(request->fingerprint());
  if (!prefix.ok()) return rpc::ToGrpc(prefix.status());
  if (request->scope() == v1::DropRequest::SAMPLES) {
    if (request->samples_size() > kMaxSamples) return rpc::ToGrpc(BadMessage("more than ", kMaxSamples, " samples"));
    for (const uint64_t sample : request->samples()) store_->Discard((*session)->name, *prefix, sample);
    return grpc::Status::OK;
  }
  response->set_bytes(store_->DropPrefix((*session)->name, *prefix));
  return grpc::Status::OK;
}

}  // namespace egeria::cache

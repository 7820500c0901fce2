// Clients that do not keep to the protocol, against a real daemon: they get nothing of others, and do not end it.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "egeria/v1/cache.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/support/cache_daemon.h"

namespace egeria::cache {
namespace {

constexpr char kVictim[] = "0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11";
constexpr int kSharedBytes = 1 << 16;

// A session of a client that is made by hand, on a connection of its own.
class Session {
 public:
  explicit Session(const std::string& address, v1::AttachRequest request = {}) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub = v1::Cache::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stream_ = stub->Attach(&context_);
    request.set_namespace_(kVictim);
    EXPECT_TRUE(stream_->Write(request) && stream_->Read(&attached));
  }
  ~Session() {
    context_.TryCancel();
    stream_->Finish();
  }

  grpc::Status Get(int64_t session, uint64_t sample, int64_t stride = 4096, uint32_t* length = nullptr) {
    grpc::ClientContext context;
    v1::GetRequest request;
    request.set_session(session);
    request.set_fingerprint(std::string(16, 'f'));
    request.add_samples(sample);
    request.set_stride(stride);
    const auto reader = stub->Get(&context, request);
    v1::GetResponse response;
    while (reader->Read(&response)) {
      if (length != nullptr && response.lengths_size() > 0) *length = response.lengths(0);
    }
    return reader->Finish();
  }
  grpc::Status Put(int64_t session, uint64_t sample, size_t bytes) {
    grpc::ClientContext context;
    v1::PutResponse response;
    const auto writer = stub->Put(&context, &response);
    v1::PutRequest request;
    request.set_session(session);
    request.set_fingerprint(std::string(16, 'f'));
    request.add_samples(sample);
    request.add_lengths(static_cast<uint32_t>(bytes));
    request.set_stride(static_cast<int64_t>(bytes));
    if (!attached.shared_memory()) request.set_data(std::string(bytes, 'x'));
    writer->Write(request);
    writer->WritesDone();
    return writer->Finish();
  }

  std::unique_ptr<v1::Cache::Stub> stub;
  v1::AttachResponse attached;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>> stream_;
};

v1::AttachRequest Sharing(int descriptor, int64_t bytes = kSharedBytes) {
  v1::AttachRequest request;
  request.set_shared_memory_descriptor(descriptor);
  request.set_shared_memory_bytes(bytes);
  return request;
}

class HostileClient : public ::testing::Test {
 protected:
  ~HostileClient() override { EXPECT_EQ(daemon_.End(SIGTERM), 0) << "the daemon has lived on"; }

  testing::CacheDaemon daemon_;
};

TEST_F(HostileClient, ASessionIsNotServedOnAnotherConnection) {
  Session victim(daemon_.address()), thief(daemon_.address());
  ASSERT_TRUE(victim.Put(victim.attached.session(), 7, 100).ok());
  uint32_t length = 0;
  for (int i = 0; i < 500 && length == 0; ++i) {
    ASSERT_TRUE(victim.Get(victim.attached.session(), 7, 4096, &length).ok());
  }
  EXPECT_EQ(length, 100u);
  EXPECT_EQ(thief.Get(victim.attached.session(), 7).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(thief.Put(victim.attached.session(), 8, 100).error_code(), grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext context;
  v1::DropRequest drop;
  drop.set_session(victim.attached.session());
  drop.set_fingerprint(std::string(16, 'f'));
  v1::DropResponse dropped;
  EXPECT_EQ(thief.stub->Drop(&context, drop, &dropped).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(HostileClient, SessionsCannotBeGuessed) {
  std::set<int64_t> numbers;
  for (int i = 0; i < 4; ++i) numbers.insert(Session(daemon_.address()).attached.session() >> 20);
  EXPECT_EQ(numbers.size(), 4u) << "they do not lie beside each other";
}

TEST_F(HostileClient, MemoryThatCanShrinkIsNotUsed) {
  const int descriptor = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(descriptor, kSharedBytes), 0);
  Session session(daemon_.address(), Sharing(descriptor));
  EXPECT_FALSE(session.attached.shared_memory());
  ASSERT_EQ(ftruncate(descriptor, 0), 0);
  EXPECT_TRUE(session.Put(session.attached.session(), 1, 4096).ok()) << "its bytes are streamed";
  close(descriptor);
}

TEST_F(HostileClient, DescriptorsOfSomethingElseAreNotUsed) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  for (const int descriptor : {ends[0], ends[1], 0, -1, 1'000'000, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(Session(daemon_.address(), Sharing(descriptor)).attached.shared_memory()) << descriptor;
  }
  const int sealed = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(sealed, kSharedBytes), 0);
  ASSERT_EQ(fcntl(sealed, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  for (const int64_t bytes : {int64_t{kSharedBytes} + 1, INT64_MAX, INT64_MIN, int64_t{-1}, int64_t{1} << 40}) {
    EXPECT_FALSE(Session(daemon_.address(), Sharing(sealed, bytes)).attached.shared_memory()) << bytes;
  }
  EXPECT_TRUE(Session(daemon_.address(), Sharing(sealed)).attached.shared_memory());
  for (const int descriptor : {ends[0], ends[1], sealed}) close(descriptor);
}

TEST_F(HostileClient, SlotsOutsideTheMemoryAreRefused) {
  const int descriptor = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(descriptor, kSharedBytes), 0);
  ASSERT_EQ(fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  Session session(daemon_.address(), Sharing(descriptor));
  ASSERT_TRUE(session.attached.shared_memory());
  const int64_t number = session.attached.session();
  for (const int64_t stride : {int64_t{kSharedBytes} + 1, INT64_MAX, int64_t{-1}}) {
    EXPECT_EQ(session.Get(number, 1, stride).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << stride;
  }
  EXPECT_EQ(session.Put(number, 1, kSharedBytes + 1).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(session.Get(number, 1, kSharedBytes).ok());
  close(descriptor);
}

TEST_F(HostileClient, WhatIsTooLargeIsRefused) {
  Session session(daemon_.address());
  EXPECT_EQ(session.Put(session.attached.session(), 1, 5 << 20).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(session.Put(session.attached.session(), 1, 1 << 20).ok());
}

}  // namespace
}  // namespace egeria::cache

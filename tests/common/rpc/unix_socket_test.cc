// Unix sockets: who listens, who connects, and how a server comes by its connections.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/rpc/bound_server.h"
#include "common/rpc/channel.h"
#include "common/rpc/connection_budget.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/peer.h"
#include "common/rpc/unix_connection.h"
#include "egeria/v1/admin.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace egeria::rpc {
namespace {

using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr uid_t kStranger = 65534;

ino_t InodeOf(int descriptor) {
  struct stat info = {};
  return fstat(descriptor, &info) == 0 ? info.st_ino : 0;
}

// Tells who calls. While `hold` is not ready a call waits in it.
class WhoCalls : public v1::Admin::Service {
 public:
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest*, v1::ListJobsResponse*) override {
    int descriptor = -1;
    EXPECT_TRUE(absl::SimpleAtoi(context->peer().substr(3), &descriptor)) << context->peer();
    before = InodeOf(descriptor);
    entered.set_value();
    if (hold.valid()) hold.wait();
    peer = PeerOf(*context);
    after = InodeOf(descriptor);
    left.set_value();
    return grpc::Status::OK;
  }

  std::promise<void> entered, left;
  std::shared_future<void> hold;
  Peer peer;
  ino_t before = 0, after = 0;
};

class UnixSocket : public ::testing::Test {
 protected:
  void SetUp() override {
    // Another user must get as far as the socket.
    chmod(folder_.path().c_str(), 0755);
    address_.unix_path = folder_ / "socket";
  }

  std::unique_ptr<BoundServer> Start(UnixListener::Options options = {}) {
    BoundServer::Options bound;
    bound.listen = {address_};
    bound.unix_sockets = std::move(options);
    auto server = BoundServer::Start(bound, {&service_});
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }

  static absl::Status Call(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 10s);
    v1::ListJobsResponse response;
    return FromGrpc(v1::Admin::NewStub(channel)->ListJobs(&context, {}, &response));
  }

  int RawConnect() const {
    const sockaddr_un name = UnixName(address_);
    const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(descriptor, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0) return descriptor;
    close(descriptor);
    return -1;
  }

  // Runs `what` in a process of another user, and returns its exit code. It may only make system calls.
  static int AsStranger(const std::function<int()>& what) {
    const pid_t child = fork();
    if (child == 0) _exit(setgid(kStranger) == 0 && setuid(kStranger) == 0 ? what() : 99);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // 0: the connection stays open; 1: it was closed; 2: it could not be made.
  int TryConnection() const {
    const int descriptor = RawConnect();
    if (descriptor < 0) return 2;
    timeval patience = {5, 0};
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char byte;
    return recv(descriptor, &byte, 1, 0) > 0 ? 0 : 1;  // a server of gRPC speaks first
  }

  testing::TempFolder folder_;
  Address address_;
  WhoCalls service_;
};

TEST_F(UnixSocket, TheServerKnowsWhoCalls) {
  const auto server = Start();
  const auto channel = MakeChannel(address_, {});
  ASSERT_TRUE(channel.ok()) << channel.status();
  ASSERT_TRUE(Call(*channel).ok());
  EXPECT_EQ(service_.peer.uid, geteuid());
  EXPECT_EQ(service_.peer.pid, getpid());
  EXPECT_EQ(service_.peer.identity, "uid:" + std::to_string(geteuid()));
}

TEST_F(UnixSocket, AConnectionKeepsItsDescriptorUntilItsLastCallHasEnded) {
  std::promise<void> go;
  service_.hold = go.get_future().share();
  const auto server = Start();
  auto channel = *MakeChannel(address_, {});
  auto context = std::make_unique<grpc::ClientContext>();
  v1::ListJobsResponse response;
  std::thread caller([&] { v1::Admin::NewStub(channel)->ListJobs(context.get(), {}, &response); });
  service_.entered.get_future().wait();
  context->TryCancel();
  caller.join();
  channel.reset();  // the client has gone, and others come, who would take its descriptor
  std::vector<int> others;
  for (int i = 0; i < 50; ++i) others.push_back(RawConnect());
  std::this_thread::sleep_for(300ms);
  go.set_value();
  service_.left.get_future().wait();
  EXPECT_NE(service_.before, 0u);
  EXPECT_EQ(service_.after, service_.before);
  for (const int other : others) close(other);
}

TEST_F(UnixSocket, ItsFileLetsInOnlyThisUser) {
  const auto server = Start();
  struct stat info = {};
  ASSERT_EQ(stat(address_.unix_path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  EXPECT_EQ(AsStranger([&] { return TryConnection(); }), 2);
}

TEST_F(UnixSocket, AUserWhoIsNotAdmittedIsClosed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  for (const bool admitted : {true, false}) {
    const auto server = Start({.mode = 0666, .admits = [&](uid_t uid) { return admitted || uid != kStranger; }});
    EXPECT_EQ(AsStranger([&] { return TryConnection(); }), admitted ? 0 : 1);
    EXPECT_EQ(TryConnection(), 0) << "this user is";
  }
}

TEST_F(UnixSocket, AClientTrustsOnlyItsUserAndRootAndWhomItIsToldTo) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  chmod(folder_.path().c_str(), 0777);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t squatter = fork();
  if (squatter == 0) {
    if (setgid(kStranger) != 0 || setuid(kStranger) != 0) _exit(99);
    const sockaddr_un name = UnixName(address_);
    const int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
    const bool listens =
        bind(descriptor, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0 && listen(descriptor, 8) == 0;
    if (write(ready[1], listens ? "1" : "0", 1) != 1) _exit(98);
    for (;;) pause();
  }
  char listens = '0';
  ASSERT_EQ(read(ready[0], &listens, 1), 1);
  ASSERT_EQ(listens, '1');
  const absl::Status refused = MakeChannel(address_, {}).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("[UNTRUSTED_SOCKET] user 65534"));
  for (const char* trusted : {"65534", "daemon, nobody", "1,65534"}) {
    setenv("EGERIA_TRUSTED_USERS", trusted, 1);
    EXPECT_TRUE(MakeChannel(address_, {}).ok()) << trusted;
  }
  setenv("EGERIA_TRUSTED_USERS", "daemon,6553", 1);
  EXPECT_FALSE(MakeChannel(address_, {}).ok());
  unsetenv("EGERIA_TRUSTED_USERS");
  kill(squatter, SIGKILL);
  waitpid(squatter, nullptr, 0);
  for (const int end : ready) close(end);
}

TEST_F(UnixSocket, NobodyWhoListensIsUnavailable) {
  EXPECT_TRUE(absl::IsUnavailable(MakeChannel(address_, {}).status()));
  Start().reset();
  EXPECT_TRUE(absl::IsUnavailable(MakeChannel(address_, {}).status()));
}

TEST_F(UnixSocket, ASecondServerIsRefusedAndWhatAKilledOneLeftIsReplaced) {
  const auto server = Start();
  EXPECT_THAT(std::string(UnixListener::Bind(address_, {}).status().message()), HasSubstr("[ADDRESS_IN_USE]"));
  const std::string moved = folder_ / "moved";
  ASSERT_EQ(rename(address_.unix_path.c_str(), moved.c_str()), 0);
  const int left = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un name = UnixName(address_);
  ASSERT_EQ(bind(left, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  close(left);
  EXPECT_TRUE(UnixListener::Bind(address_, {}).ok());
}

TEST_F(UnixSocket, OnlyItsOwnFileIsRemoved) {
  auto server = Start();
  ASSERT_EQ(unlink(address_.unix_path.c_str()), 0);
  auto successor = UnixListener::Bind(address_, {});
  ASSERT_TRUE(successor.ok()) << successor.status();
  server.reset();
  EXPECT_EQ(access(address_.unix_path.c_str(), F_OK), 0) << "it is the successor's";
  successor->reset();
  EXPECT_NE(access(address_.unix_path.c_str(), F_OK), 0);
}

TEST_F(UnixSocket, AServerWithoutDescriptorsAcceptsAgainWhenThereAreSome) {
  const auto server = Start();
  ASSERT_EQ(TryConnection(), 0);
  std::vector<int> waiting;
  for (int i = 0; i < 8; ++i) waiting.push_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit tight = {static_cast<rlim_t>(waiting.back()) + 1, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const sockaddr_un name = UnixName(address_);
  for (const int descriptor : waiting) {
    EXPECT_EQ(connect(descriptor, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0) << "in the backlog";
  }
  std::this_thread::sleep_for(300ms);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(TryConnection(), 0);
  for (const int descriptor : waiting) close(descriptor);
}

TEST(ConnectionBudget, OnePeerHasHalfAndWhatIsClosedIsForgotten) {
  ConnectionBudget budget(4);
  std::vector<int> sockets;
  const auto add = [&](absl::string_view peer) {
    sockets.push_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return budget.Add(sockets.back(), peer);
  };
  EXPECT_TRUE(add("1"));
  EXPECT_TRUE(add("1"));
  EXPECT_FALSE(add("1")) << "the peer has half of them";
  EXPECT_TRUE(add("2"));
  EXPECT_TRUE(add("3"));
  EXPECT_FALSE(add("4")) << "there are too many in all";
  close(sockets[0]);
  sockets[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);  // the number is another socket's
  EXPECT_TRUE(add("1"));
  EXPECT_FALSE(add("4"));
  for (const int each : sockets) close(each);
}

TEST_F(UnixSocket, AServerKeepsDescriptorsForItselfWhateverConnects) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit tight = {64, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const auto server = Start();
  const pid_t crowd = fork();
  if (crowd == 0) {  // another process: connections of the server's own do not count
    const rlimit many = {limit.rlim_max, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &many);
    for (int i = 0; i < 100; ++i) ConnectUnixUnchecked(address_);
    pause();
  }
  std::this_thread::sleep_for(500ms);
  std::vector<int> left;
  for (int i = 0; i < 8; ++i) left.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(left, Each(Ge(0)));
  for (const int each : left) close(each);
  EXPECT_EQ(TryConnection(), 0) << "this process is not refused";
  kill(crowd, SIGKILL);
  waitpid(crowd, nullptr, 0);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace
}  // namespace egeria::rpc

// TCP ports: which addresses are bound, who connects, and how many may.
#include "common/rpc/tcp_listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/rpc/bound_server.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/peer.h"
#include "egeria/v1/admin.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace egeria::rpc {
namespace {

using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using namespace std::chrono_literals;

// Keeps where the newest call came from.
class WhereFrom : public v1::Admin::Service {
 public:
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest*, v1::ListJobsResponse*) override {
    place = PeerOf(*context).place;
    return grpc::Status::OK;
  }

  std::string place;
};

class TcpPort : public ::testing::Test {
 protected:
  std::unique_ptr<BoundServer> Start(const std::string& host, int port = 0) {
    BoundServer::Options options;
    options.listen = {{.unix_path = "", .host = host, .port = port}};
    auto server = BoundServer::Start(options, {&service_});
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }

  static absl::Status Call(const Address& address) {
    const auto channel = MakeChannel(address, {});
    if (!channel.ok()) return channel.status();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 10s);
    v1::ListJobsResponse response;
    return FromGrpc(v1::Admin::NewStub(*channel)->ListJobs(&context, {}, &response));
  }

  // A connection to this port of 127.0.0.1 that comes from another address of this machine; -1: there is none.
  static int ConnectFrom(const char* source, int port) {
    const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in from = {}, to = {};
    from.sin_family = to.sin_family = AF_INET;
    to.sin_port = htons(port);
    inet_pton(AF_INET, source, &from.sin_addr);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    if (bind(descriptor, reinterpret_cast<sockaddr*>(&from), sizeof(from)) == 0 &&
        connect(descriptor, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
      return descriptor;
    }
    close(descriptor);
    return -1;
  }

  // Whether a server of gRPC, which speaks first, is at the other end. Closes the connection.
  static bool IsServed(int descriptor) {
    timeval patience = {5, 0};
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char byte;
    const bool served = recv(descriptor, &byte, 1, 0) > 0;
    close(descriptor);
    return served;
  }

  WhereFrom service_;
};

TEST_F(TcpPort, TheServerKnowsFromWhereItIsCalled) {
  const auto server = Start("127.0.0.1");
  ASSERT_GT(server->addresses()[0].port, 0);
  EXPECT_TRUE(Call(server->addresses()[0]).ok());
  EXPECT_THAT(service_.place, StartsWith("ipv4:127.0.0.1:"));
}

TEST_F(TcpPort, AllAddressesOfANameAreServed) {
  const auto server = Start("localhost");
  Address address = server->addresses()[0];
  EXPECT_TRUE(Call(address).ok());
  address.host = "127.0.0.1";
  EXPECT_TRUE(Call(address).ok());
}

TEST_F(TcpPort, APortThatIsInUseIsNamed) {
  const auto server = Start("127.0.0.1");
  const auto second = TcpListener::Bind(server->addresses()[0]);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("the port is in use"));
  Address elsewhere = server->addresses()[0];
  elsewhere.host = "192.0.2.1";
  EXPECT_THAT(std::string(TcpListener::Bind(elsewhere).status().message()),
              HasSubstr("the host is no address of this machine"));
}

TEST_F(TcpPort, ASuccessorGetsThePortAtOnce) {
  auto server = Start("127.0.0.1");
  const Address address = server->addresses()[0];
  EXPECT_TRUE(Call(address).ok());
  server->Stop(absl::ZeroDuration());
  server = Start("127.0.0.1", address.port);
  EXPECT_TRUE(Call(address).ok());
}

TEST_F(TcpPort, ACrowdFromOneAddressKeepsNobodyElseOut) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit tight = {64, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const auto server = Start("127.0.0.1");
  const int port = server->addresses()[0].port;
  const pid_t crowd = fork();
  if (crowd == 0) {
    const rlimit many = {limit.rlim_max, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &many);
    for (int i = 0; i < 100; ++i) ConnectFrom("127.0.0.2", port);
    pause();
  }
  std::this_thread::sleep_for(500ms);
  std::vector<int> left;
  for (int i = 0; i < 8; ++i) left.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(left, Each(Ge(0))) << "the server keeps descriptors for itself";
  for (const int each : left) close(each);
  EXPECT_FALSE(IsServed(ConnectFrom("127.0.0.2", port)));
  EXPECT_TRUE(IsServed(ConnectFrom("127.0.0.3", port)));
  kill(crowd, SIGKILL);
  waitpid(crowd, nullptr, 0);
  bool served = false;  // once the server has seen that the crowd's connections have ended
  for (int i = 0; i < 100 && !served; ++i) {
    served = IsServed(ConnectFrom("127.0.0.2", port));
    if (!served) std::this_thread::sleep_for(50ms);
  }
  EXPECT_TRUE(served);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace
}  // namespace egeria::rpc

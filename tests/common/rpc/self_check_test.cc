#include "common/rpc/self_check.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "common/rpc/server.h"
#include "egeria/v1/admin.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace egeria::rpc {
namespace {

using ::testing::HasSubstr;

const SelfCheck::Options kAtOnce = {
    .every = absl::ZeroDuration(), .patience = absl::Milliseconds(300), .lost_after = absl::Milliseconds(1)};

std::unique_ptr<grpc::Server> Serve(const std::string& address, int* port = nullptr) {
  static v1::Admin::Service service;  // a server without any does not start
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  ConfigureServer(&builder);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), port);
  return builder.BuildAndStart();
}

int ListenAt(const std::string& path) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, path.c_str(), sizeof(name.sun_path) - 1);
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(bind(made, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  EXPECT_EQ(listen(made, 8), 0);
  return made;
}

TEST(SelfCheck, IsFineWhereServersAnswer) {
  const testing::TempFolder folder;
  Address unix_socket, tcp;
  unix_socket.unix_path = folder / "s";
  tcp.host = "127.0.0.1";
  const auto first = Serve(unix_socket.ToString());
  const auto second = Serve("127.0.0.1:0", &tcp.port);
  SelfCheck check({unix_socket, tcp}, kAtOnce);
  for (int i = 0; i < 3; ++i) {
    check.Look();
    EXPECT_TRUE(check.hearing().ok()) << check.hearing();
    EXPECT_TRUE(check.paths().ok()) << check.paths();
    EXPECT_FALSE(check.IsLost());
  }
}

TEST(SelfCheck, FindsAServerThatDoesNotAcceptAndIsFineWhenItDoes) {
  Address address;
  address.host = "127.0.0.1";
  const int deaf = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(name);
  ASSERT_EQ(bind(deaf, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  ASSERT_EQ(listen(deaf, 8), 0);
  ASSERT_EQ(getsockname(deaf, reinterpret_cast<sockaddr*>(&name), &length), 0);
  address.port = ntohs(name.sin_port);
  SelfCheck check({address}, kAtOnce);
  check.Look();
  EXPECT_THAT(std::string(check.hearing().message()), HasSubstr("deaf"));
  usleep(2'000);
  EXPECT_TRUE(check.IsLost());
  close(deaf);
  const auto server = Serve(address.ToString());
  check.Look();
  EXPECT_TRUE(check.hearing().ok()) << check.hearing();
  EXPECT_FALSE(check.IsLost());
}

TEST(SelfCheck, SaysThatASocketHasVanishedOrIsAnotherProcesses) {
  const testing::TempFolder folder;
  Address address;
  address.unix_path = folder / "s";
  const auto server = Serve(address.ToString());
  unlink(address.unix_path.c_str());
  SelfCheck check({address}, kAtOnce);
  check.Look();
  EXPECT_THAT(std::string(check.paths().message()), HasSubstr("has vanished"));
  EXPECT_TRUE(check.hearing().ok()) << "its streams go on";

  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t other = fork();
  if (other == 0) {
    ListenAt(address.unix_path);
    if (write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  check.Look();
  EXPECT_THAT(std::string(check.paths().message()), HasSubstr("another process, " + std::to_string(other)));
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

}  // namespace
}  // namespace egeria::rpc

#include "common/rpc/credentials.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/server.h"
#include "egeria/v1/admin.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"

namespace egeria::rpc {
namespace {

using ::testing::HasSubstr;

class EmptyAdmin : public v1::Admin::Service {
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*, v1::ListJobsResponse*) override {
    return grpc::Status::OK;
  }
};

// Named after what the tests are about.
class Certificates : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto made = egeria::testing::Certificates::Make();
    ASSERT_TRUE(made.ok()) << made.status();
    made_ = *std::move(made);
  }
  static void TearDownTestSuite() { made_.reset(); }

  static TlsFiles Of(const std::string& ca, const std::string& identity) { return made_->Of(ca, identity); }

  // Calls a server that has `server` from a client that has `client`.
  static absl::Status Call(const TlsFiles& server, const TlsFiles& client) {
    Address address{"", "127.0.0.1", 0};
    auto credentials = ServerCredentialsFor(address, server, false);
    if (!credentials.ok()) return credentials.status();
    EmptyAdmin admin;
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    builder.AddListeningPort(address.ToString(), *credentials, &address.port);
    builder.RegisterService(&admin);
    std::unique_ptr<grpc::Server> running = builder.BuildAndStart();
    auto channel = MakeChannel(address, client);
    if (!channel.ok()) return channel.status();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::ListJobsResponse response;
    return FromGrpc(v1::Admin::NewStub(*channel)->ListJobs(&context, {}, &response));
  }

  static inline std::unique_ptr<egeria::testing::Certificates> made_;
};

TEST_F(Certificates, LetTwoSidesOfOneAuthorityTalk) {
  const absl::Status status = Call(Of("ours", "ours"), Of("ours", "ours"));
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(Certificates, KeepOutAClientOfAnotherAuthority) {
  EXPECT_EQ(Call(Of("ours", "ours"), Of("ours", "theirs")).code(), absl::StatusCode::kUnavailable);
}

TEST_F(Certificates, MakeAClientRefuseAServerOfAnotherAuthority) {
  EXPECT_EQ(Call(Of("theirs", "ours"), Of("theirs", "theirs")).code(), absl::StatusCode::kUnavailable);
}

TEST_F(Certificates, KeepOutAClientWithoutAny) {
  EXPECT_EQ(Call(Of("ours", "ours"), {}).code(), absl::StatusCode::kUnavailable);
}

TEST_F(Certificates, AreNotNeededOnLoopback) {
  const absl::Status status = Call({}, {});
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(Certificates, MustBeGivenAllThree) {
  TlsFiles files = Of("ours", "ours");
  files.key.clear();
  const auto server = ServerCredentialsFor({"", "0.0.0.0", 1}, files, true);
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("EGERIA_TLS_KEY"));
  EXPECT_FALSE(ChannelCredentialsFor({"", "node", 1}, files).ok());
  EXPECT_FALSE(CheckTlsFiles(files).ok());
  EXPECT_TRUE(CheckTlsFiles(Of("ours", "ours")).ok());
  EXPECT_TRUE(CheckTlsFiles({}).ok());
}

TEST_F(Certificates, ThatCannotBeReadAreNamed) {
  TlsFiles files = Of("ours", "ours");
  files.certificate = made_->Path("absent.pem");
  const auto server = ServerCredentialsFor({"", "0.0.0.0", 1}, files, true);
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("absent.pem"));
}

TEST(ServerCredentials, AreNotNeededWhereOnlyThisMachineCanConnect) {
  EXPECT_TRUE(ServerCredentialsFor({"/tmp/socket", "", 0}, {}, false).ok());
  EXPECT_TRUE(ServerCredentialsFor({"", "127.0.0.1", 0}, {}, false).ok());
}

TEST(ServerCredentials, AreDemandedOfEveryOtherAddressUnlessInsecureIsSaid) {
  const auto refused = ServerCredentialsFor({"", "0.0.0.0", 7433}, {}, false);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ErrorName(refused.status()), "INSECURE_ADDRESS");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--insecure"));
  EXPECT_TRUE(ServerCredentialsFor({"", "0.0.0.0", 7433}, {}, true).ok());
}

TEST(Channel, NeedsAPort) { EXPECT_FALSE(MakeChannel({"", "127.0.0.1", 0}, {}).ok()); }

}  // namespace
}  // namespace egeria::rpc

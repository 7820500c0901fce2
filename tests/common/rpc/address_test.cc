#include "common/rpc/address.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::rpc {
namespace {

using ::testing::HasSubstr;

TEST(Address, ReadsUnixSocketsInBothSpellings) {
  for (const char* text : {"unix:/run/egeria/socket", "unix:///run/egeria/socket"}) {
    const auto address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_TRUE(address->is_unix());
    EXPECT_EQ(address->unix_path, "/run/egeria/socket");
    EXPECT_EQ(address->ToString(), "unix:/run/egeria/socket");
  }
}

TEST(Address, ReadsHostAndPort) {
  const auto address = ParseAddress("node-3.cluster:7433");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_FALSE(address->is_unix());
  EXPECT_EQ(address->host, "node-3.cluster");
  EXPECT_EQ(address->port, 7433);
  EXPECT_EQ(address->ToString(), "node-3.cluster:7433");
}

TEST(Address, KeepsTheBracketsOfIpv6) {
  const auto address = ParseAddress("[::1]:80");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->host, "::1");
  EXPECT_EQ(address->ToString(), "[::1]:80");
}

TEST(Address, KnowsWhatOnlyThisMachineCanReach) {
  for (const char* text : {"unix:/s", "localhost:1", "127.0.0.1:1", "127.9.8.7:1", "[::1]:1"}) {
    EXPECT_TRUE(ParseAddress(text)->IsLocal()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "localhost.evil.example:1", "127.0.0.1.nip.io:1",
                           "node:1", "128.0.0.1:1"}) {
    EXPECT_FALSE(ParseAddress(text)->IsLocal()) << text;
  }
}

TEST(Address, RefusesWhatItCannotUseAndShowsTheRightForm) {
  for (const std::string& text :
       {std::string(""), std::string("host"), std::string(":80"), std::string("host:"), std::string("host:80x"),
        std::string("host:65536"), std::string("host:-1"), std::string("host:99999999999999999999"),
        std::string("unix:relative"), std::string("unix://host/path"), std::string("unix:"), std::string("::1:80"),
        std::string("[::1:80"), std::string("[nonsense]:80"), std::string("http://host:80"), std::string("a b:80"),
        "unix:/" + std::string(107, 'x')}) {
    const auto address = ParseAddress(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(address.status().message()), HasSubstr("unix:/path/to/socket")) << text;
  }
}

TEST(Address, TakesTheLongestPathThatASocketCanHave) {
  EXPECT_TRUE(ParseAddress("unix:/" + std::string(106, 'x')).ok());
}

}  // namespace
}  // namespace egeria::rpc

#include "worker/commit/process_group.h"

#include <cstdlib>

#include "ATen/ops/full.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/ranks.h"

namespace egeria::worker {
namespace {

using ::egeria::testing::GlooGroup;
using ::egeria::testing::RunRanks;

void ExpectSums(const ProcessGroupPtr& group, int rank) {
  std::vector<at::Tensor> tensors = {at::full({3}, rank + 1.0)};
  group->allreduce(tensors)->wait();
  EXPECT_EQ(tensors[0].sum().item<double>(), 18.0);
}

TEST(GlooGroup, ReducesOverAllMembersAndSeveralGroupsShareAStore) {
  RunRanks(3, [](const GroupMember& member) {
    const ProcessGroupPtr first = GlooGroup(member, "first"), second = GlooGroup(member, "second");
    ExpectSums(second, member.rank);
    ExpectSums(first, member.rank);
  });
}

TEST(GlooGroup, UsesTheInterfaceThatTheEnvironmentNames) {
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  RunRanks(3, [](const GroupMember& member) { ExpectSums(GlooGroup(member, "loopback"), member.rank); });
  ::setenv("GLOO_SOCKET_IFNAME", "no-such-interface", 1);
  RunRanks(1, [](const GroupMember& member) {
    EXPECT_THAT(std::string(MakeGlooGroup(member, "x", std::chrono::seconds(5)).status().message()),
                ::testing::HasSubstr("[GROUP_FAILED]"));
  });
  ::unsetenv("GLOO_SOCKET_IFNAME");
}

TEST(GlooGroup, AMemberThatDoesNotComeIsAStatus) {
  RunRanks(1, [](const GroupMember& alone) {
    const GroupMember of_two{alone.store, 0, 2};
    const auto group = MakeGlooGroup(of_two, "lonely", std::chrono::milliseconds(200));
    EXPECT_EQ(group.status().code(), absl::StatusCode::kUnavailable);
  });
}

TEST(DeviceGroup, SaysThatThisBuildHasNoLibraryForADevice) {
  RunRanks(1, [](const GroupMember& member) {
    EXPECT_TRUE(MakeDeviceGroup(member, "cpu", c10::DeviceType::CPU, std::chrono::seconds(5)).ok());
    const auto group = MakeDeviceGroup(member, "xpu", c10::DeviceType::XPU, std::chrono::seconds(5));
    EXPECT_THAT(std::string(group.status().message()), ::testing::HasSubstr("[NO_BACKEND]"));
  });
}

}  // namespace
}  // namespace egeria::worker

#include "worker/commit/rank_change.h"

#include <stdexcept>
#include <string>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/ranks.h"

namespace egeria::worker {
namespace {

using ::egeria::testing::GlooGroup;
using ::egeria::testing::RunRanks;
using ::testing::HasSubstr;

// A rank's value, which a change raises to 1.
struct Value {
  RankChange Change(absl::Status outcome = absl::OkStatus()) {
    return {[this, outcome] {
              value = 1;
              return outcome;
            },
            [this] { value = 0; }};
  }
  int value = 0;
};

TEST(RankChange, StandsWhereItSucceedsOnAllRanks) {
  RunRanks(2, [](const GroupMember& member) {
    const ProcessGroupPtr group = GlooGroup(member, "commit");
    Value own;
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(ChangeAllOrNone(group, own.Change()).ok());
    EXPECT_EQ(own.value, 1);
  });
}

TEST(RankChange, IsUndoneOnAllRanksWhereItFailsOnOne) {
  RunRanks(3, [](const GroupMember& member) {
    const ProcessGroupPtr group = GlooGroup(member, "commit");
    Value own;
    const absl::Status failure = absl::ResourceExhaustedError("no memory");
    const absl::Status status = ChangeAllOrNone(group, own.Change(member.rank == 1 ? failure : absl::OkStatus()));
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("[CHANGE_UNDONE]"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(member.rank == 1 ? "no memory" : "another rank"));
    EXPECT_EQ(own.value, 0);
    EXPECT_TRUE(ChangeAllOrNone(group, own.Change()).ok()) << "the ranks go on together";
  });
}

TEST(RankChange, AnExceptionIsAFailure) {
  Value own;
  RankChange change = own.Change();
  change.apply = [] { return throw std::runtime_error("torch's own"), absl::OkStatus(); };
  const absl::Status status = ChangeAllOrNone(nullptr, change);
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("torch's own"));
}

TEST(RankChange, AWorldOfOneDecidesAlone) {
  Value own;
  EXPECT_TRUE(ChangeAllOrNone(nullptr, own.Change()).ok());
  EXPECT_EQ(own.value, 1);
  EXPECT_TRUE(absl::IsAborted(ChangeAllOrNone(nullptr, own.Change(absl::InternalError("no")))));
  EXPECT_EQ(own.value, 0);
}

TEST(RankChange, IsUndoneWhereARankIsGone) {
  RunRanks(2, [](const GroupMember& member) {
    const ProcessGroupPtr group = GlooGroup(member, "commit", std::chrono::milliseconds(500));
    if (member.rank == 1) return;
    Value own;
    const absl::Status status = ChangeAllOrNone(group, own.Change());
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("[COMMIT_FAILED]"));
    EXPECT_EQ(own.value, 0);
  });
}

}  // namespace
}  // namespace egeria::worker

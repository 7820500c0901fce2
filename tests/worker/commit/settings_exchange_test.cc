#include "worker/commit/settings_exchange.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/ranks.h"

namespace egeria::worker {
namespace {

using ::egeria::testing::RunRanks;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

RankSettings Settings(const std::string& host, const std::string& policy) {
  return {host, {{"policy", policy}, {"observe", "false"}}};
}

TEST(SettingsExchange, TellsEveryRankTheSettingsOfAll) {
  RunRanks(3, [](const GroupMember& member) {
    SettingsExchange exchange(member, "first");
    ASSERT_TRUE(exchange.Post(Settings(absl::StrCat("host", member.rank), "auto")).ok());
    const auto all = exchange.Finish({0, 1, 2}, {nullptr, seconds(60)});
    ASSERT_TRUE(all.ok()) << all.status();
    ASSERT_EQ(all->size(), 3u);
    EXPECT_EQ((*all)[2].host, "host2");
    EXPECT_TRUE(DifferencesFromFirst(*all, {0, 1, 2}).empty());
  });
}

TEST(SettingsExchange, NamesTheRankThatDoesNotComeAndThatRankLearnsThatItCameTooLate) {
  RunRanks(3, [](const GroupMember& member) {
    SettingsExchange exchange(member, "second");
    if (member.rank == 2) {  // it comes when the others have given up
      member.store->wait({"gave up 0", "gave up 1"}, seconds(60));
      ASSERT_TRUE(exchange.Post(Settings("c", "auto")).ok());
    } else {
      ASSERT_TRUE(exchange.Post(Settings("a", "auto")).ok());
    }
    const auto all = exchange.Finish({0, 1, 2}, {nullptr, milliseconds(300)});
    EXPECT_EQ(all.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(all.status().message()), HasSubstr("[RANK_MISSING] rank 2 has not come"));
    if (member.rank != 2) member.store->set(absl::StrCat("gave up ", member.rank), std::vector<uint8_t>{1});
  });
}

TEST(SettingsExchange, WaitsOnlyForTheRanksThatAreNamed) {
  RunRanks(3, [](const GroupMember& member) {
    SettingsExchange exchange(member, "third");
    if (member.rank == 1) return;
    ASSERT_TRUE(exchange.Post(Settings("a", "auto")).ok());
    EXPECT_TRUE(exchange.Finish({0, 2}, {nullptr, seconds(60)}).ok());
  });
}

TEST(SettingsExchange, AnInterruptionEndsTheWait) {
  RunRanks(1, [](const GroupMember& alone) {
    SettingsExchange exchange({alone.store, 0, 2}, "fourth");
    const auto all = exchange.Finish({0, 1}, {[] { return true; }, seconds(60)});
    EXPECT_EQ(all.status().code(), absl::StatusCode::kCancelled);
  });
}

TEST(SettingsExchange, TheControllersAddressHoldsForTheNodeOfTheFirstRank) {
  const auto at = [](const std::string& host, const std::string& address) {
    return RankSettings{host, {{kControllerAddress, address}}};
  };
  const std::vector<RankSettings> settings = {at("a", "unix:/x"), at("a", "unix:/y"), at("b", "a:7000")};
  EXPECT_EQ(AgreedAddress(settings, 0), "unix:/x");
  EXPECT_EQ(AgreedAddress(settings, 1), "unix:/x");
  EXPECT_EQ(AgreedAddress(settings, 2), "a:7000");
}

TEST(SettingsExchange, NamesEachDifferenceWithBothValues) {
  std::vector<RankSettings> settings = {Settings("a", "auto"), Settings("b", "none"), Settings("c", "auto")};
  settings[2].values.erase("observe");
  const std::vector<SettingDifference> differences = DifferencesFromFirst(settings, {4, 5, 6});
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(ToString(differences[0]), "observe: rank 6 (c) has nothing, and rank 4 has false");
  EXPECT_EQ(ToString(differences[1]), "policy: rank 5 (b) has none, and rank 4 has auto");
}

}  // namespace
}  // namespace egeria::worker

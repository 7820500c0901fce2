#include "controller/job/rank_table.h"

#include <memory>

#include "gtest/gtest.h"

namespace egeria::controller {
namespace {

class Listener : public SessionListener {
 public:
  void OnDirectiveChanged() override { ++pushes; }
  void OnUploadRefused(int64_t, const absl::Status&) override {}
  void OnClose(const absl::Status&) override { ++closes; }

  int pushes = 0;
  int closes = 0;
};

TEST(RankTable, TheLowestConnectedRankSamples) {
  RankTable table;
  EXPECT_EQ(table.Sampler(), -1);
  table.Join(0, 1);
  EXPECT_EQ(table.Sampler(), -1) << "a rank without a session";
  table.Join(3, 1).session = SessionId(1);
  table.Join(2, 1).session = SessionId(2);
  EXPECT_EQ(table.Sampler(), 2);
}

TEST(RankTable, ConnectedRanksAreToldAfterTheEffects) {
  RankTable table;
  const auto listener = std::make_shared<Listener>();
  table.Join(0, 1).listener = listener;
  Rank& connected = table.Join(1, 1);
  connected.session = SessionId(1);
  connected.listener = listener;
  {
    Effects effects(nullptr);
    table.PushDirectives(effects);
    table.DismissAll(absl::UnavailableError("over"), effects);
    EXPECT_EQ(listener->pushes, 0);
  }
  EXPECT_EQ(listener->pushes, 1);
  EXPECT_EQ(listener->closes, 1);
  EXPECT_EQ(table.Find(1), nullptr);
}

TEST(RankTable, CountersOutliveTheirProcesses) {
  RankTable table;
  table.Join(0, 1).counters.set_reconnects(2);
  table.Join(0, 1).counters.set_samples_dropped(3);
  EXPECT_EQ(table.Join(0, 1).counters.reconnects(), 2) << "the same process comes back";
  EXPECT_EQ(table.Join(0, 7).counters.reconnects(), 0) << "another process";
  table.Find(0)->counters.set_reconnects(1);
  EXPECT_EQ(table.Totals().reconnects(), 3);
  EXPECT_EQ(table.Totals().samples_dropped(), 3);
  Effects effects(nullptr);
  table.DismissAll(absl::UnavailableError("over"), effects);
  EXPECT_EQ(table.Totals().reconnects(), 3);
}

TEST(RankTable, CommitsAreThoseOfTheFurthestRankOfEachGeneration) {
  RankTable table;
  table.Join(0, 1).counters.set_commits(2);
  table.Join(1, 1).counters.set_commits(3);
  EXPECT_EQ(table.Totals().commits(), 3);
  Effects effects(nullptr);
  table.DismissAll(absl::UnavailableError("over"), effects);
  table.Join(0, 2).counters.set_commits(1);
  EXPECT_EQ(table.Totals().commits(), 4);
}

}  // namespace
}  // namespace egeria::controller

#include "worker/cache/client/pass_ledger.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using Step = PassLedger::Step;

constexpr int64_t kBatch = 4;
const std::vector<std::string> kHits(kBatch), kAbsent(kBatch, "absent");

class PassLedgerTest : public ::testing::Test {
 protected:
  void SetUp() override { ledger_.SamplesRepeat(true); }

  // A pass that asks, and does what the ledger decides. Each of its parts takes as long as the clock is told.
  Step Pass(const std::vector<std::string>& reasons, bool filled = true) {
    EXPECT_TRUE(ledger_.Begin(kBatch, /*on_host=*/true));
    ledger_.Ask();
    seconds_ += 0.001;
    const bool missing = !ledger_.Answer(reasons, /*fits=*/true).empty();
    const Step step = ledger_.Decide(filled || !missing);
    if (step != Step::kSkip) {
      ledger_.BeginCompute();
      seconds_ += 1;
      ledger_.EndCompute();
    }
    ledger_.Resume();
    seconds_ += 0.002;
    if (step == Step::kSkip) ledger_.Skipped();
    if (step == Step::kCompute) ledger_.Kept();
    return step;
  }

  double seconds_ = 0;
  std::vector<bool> waits_;
  PassLedger ledger_{[this](bool wait) {
                       waits_.push_back(wait);
                       return seconds_;
                     },
                     /*always=*/false};
};

TEST_F(PassLedgerTest, AuditsPassesOftenInTheBeginningAndRarelyLater) {
  std::vector<int> audited;
  for (int pass = 1; pass <= 600; ++pass) {
    if (Pass(kHits) == Step::kAudit) audited.push_back(pass);
  }
  EXPECT_THAT(audited, ElementsAre(1, 4, 16, 64, 256, 512));
  EXPECT_EQ(ledger_.counts().audits, 6);
  EXPECT_EQ(ledger_.counts().passes_skipped, 594);
  EXPECT_EQ(ledger_.counts().hits, 594 * kBatch);
  ledger_.Follow();
  ledger_.SamplesRepeat(true);
  EXPECT_EQ(Pass(kHits), Step::kAudit) << "another prefix is audited anew";
}

TEST_F(PassLedgerTest, NamesWhySamplesAreComputed) {
  EXPECT_EQ(Pass(kAbsent), Step::kCompute);
  EXPECT_EQ(Pass({"", "late", "", ""}, /*filled=*/false), Step::kCompute);
  EXPECT_EQ(Pass({"", "late", "", ""}), Step::kAudit);
  EXPECT_EQ(Pass({"", "late", "", ""}), Step::kSkip);
  EXPECT_FALSE(ledger_.Begin(std::nullopt, true));
  ledger_.Missed("unproven", 2);
  ledger_.Failed(kBatch);
  EXPECT_THAT(ledger_.counts().misses,
              UnorderedElementsAre(Pair("absent", 4), Pair("late", 3), Pair("recomputed", 3), Pair("audited", 3),
                                   Pair("no_ids", 1), Pair("unproven", 2), Pair("failure", 4)));
  EXPECT_EQ(ledger_.counts().passes, 5);
  EXPECT_EQ(ledger_.counts().hits, 3);
  EXPECT_EQ(ledger_.counts().failures, 1);
}

TEST_F(PassLedgerTest, FindsThePositionsOfWhatIsMissing) {
  ledger_.Begin(kBatch, true);
  EXPECT_THAT(ledger_.Answer({"", "late", "", "absent"}, true), ElementsAre(1, 3));
  EXPECT_THAT(ledger_.Answer({"", "late", "", "absent"}, /*fits=*/false), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(ledger_.counts().misses.at("unfit"), 2) << "hits that look otherwise than they must";
  EXPECT_EQ(ledger_.Decide(/*filled=*/true), Step::kCompute);
}

TEST_F(PassLedgerTest, CountsTheTimeOfTheModelItselfToNobody) {
  for (int pass = 0; pass < 12; ++pass) Pass(kAbsent);
  EXPECT_NEAR(ledger_.spent_seconds(), 12 * 0.003, 1e-9);
  EXPECT_NEAR(*ledger_.estimates().forward_seconds, 1, 1e-9);
  for (int pass = 0; pass < 12; ++pass) Pass(kHits);
  EXPECT_NEAR(*ledger_.estimates().fetch_seconds, 0.003, 1e-9);
  const double begin = ledger_.Now();
  seconds_ += 0.5;
  ledger_.Proved(begin);
  EXPECT_EQ(ledger_.counts().proofs, 1);
  EXPECT_NEAR(ledger_.spent_seconds(), 12 * 0.003 + 2 * 0.001 + 10 * 0.003 + 0.5, 1e-9) << "of two audits, the asking";
}

TEST_F(PassLedgerTest, AddsUpWhatPrefixesHaveSavedAndSpent) {
  for (int pass = 0; pass < 12; ++pass) Pass(kAbsent);
  for (int pass = 0; pass < 12; ++pass) Pass(kHits);
  const double saved = ledger_.estimates().saved_seconds, spent = ledger_.spent_seconds();
  EXPECT_GT(saved, 9);
  ledger_.Follow();
  EXPECT_EQ(ledger_.estimates().saved_seconds, saved);
  EXPECT_EQ(ledger_.spent_seconds(), spent);
  EXPECT_FALSE(ledger_.estimates().forward_seconds.has_value());
  EXPECT_FALSE(ledger_.in_use()) << "whether samples come again has to be said for each prefix";
}

TEST_F(PassLedgerTest, WaitsForADeviceInTheFirstPassesAndInFewLater) {
  std::vector<int> timed;
  for (int pass = 0; pass < 200; ++pass) {
    waits_.clear();
    ledger_.Begin(kBatch, /*on_host=*/false);
    ledger_.BeginCompute();
    if (waits_.back() && pass >= 64) timed.push_back(pass);
    if (pass < 64) {
      EXPECT_TRUE(waits_.back()) << pass;
    }
  }
  EXPECT_THAT(timed, ElementsAre(64, 96, 128, 160, 192));
}

TEST_F(PassLedgerTest, TellsEachDecisionOnce) {
  EXPECT_FALSE(ledger_.News().has_value());
  for (int pass = 0; pass < 12; ++pass) Pass(kAbsent);
  for (int pass = 0; pass < 12; ++pass) Pass(kHits);
  EXPECT_THAT(*ledger_.News(), HasSubstr("on: the frozen layers' forward pass takes 1000.00 ms"));
  EXPECT_FALSE(ledger_.News().has_value());
  ledger_.SamplesRepeat(false);
  EXPECT_THAT(*ledger_.News(), HasSubstr("off: samples do not come again"));
}

TEST(PassLedger, IsOffWhereSamplesDoNotRepeat) {
  PassLedger ledger([](bool) { return 0.0; }, /*always=*/false);
  ledger.SamplesRepeat(false);
  EXPECT_FALSE(ledger.Begin(kBatch, true));
  EXPECT_EQ(ledger.counts().misses.at("off"), kBatch);
  EXPECT_EQ(ledger.patience(7), 0);
}

TEST(PassLedger, MeasuresStepsForWhatIsKeptBeforeItIsKnownThatSamplesRepeat) {
  double now = 0;
  PassLedger ledger([&now](bool) { return now; }, /*always=*/false);
  int kept = 0;
  for (int pass = 0; pass < 1000; ++pass) {
    if (ledger.Begin(kBatch, true)) {
      ++kept;
      ledger.Ask();
      ledger.Answer(kAbsent, true);
      ASSERT_EQ(ledger.Decide(false), Step::kCompute);
      ledger.BeginCompute();
      now += 0.05;
      ledger.EndCompute();
      ledger.Resume();
      now += 0.004;
      ledger.Kept(/*seconds_behind=*/0.006 * kept);
    }
    now += 0.05;
  }
  EXPECT_GT(0.010 * kept, 0.015 * now);
  EXPECT_LT(0.010 * kept, 0.021 * now);
}

TEST(PassLedger, CountsWhatAShallowerPrefixSaves) {
  double now = 0;
  PassLedger ledger([&now](bool) { return now; }, /*always=*/true);
  ledger.Begin(kBatch, true);
  ledger.Ask();
  ledger.Answer(kAbsent, true);
  ASSERT_EQ(ledger.Decide(false), Step::kCompute);
  ledger.Resume();
  ledger.Kept();
  ledger.Spared(0.25);
  ledger.Follow();
  EXPECT_EQ(ledger.counts().passes_spared, 1);
  EXPECT_EQ(ledger.counts().passes_skipped, 0);
  EXPECT_DOUBLE_EQ(ledger.estimates().saved_seconds, 0.25);
}

TEST(PassLedger, AProofCountsToNoPass) {
  double now = 0;
  PassLedger ledger([&now](bool) { return now; }, /*always=*/true);
  ledger.Begin(kBatch, true);
  ledger.Ask();
  const double begin = ledger.Now();
  now += 5;
  ledger.Proved(begin);
  now += 0.25;
  ledger.Answer(kHits, true);
  while (ledger.Decide(true) != Step::kSkip) ledger.Ask();
  ledger.Resume();
  ledger.Skipped();
  EXPECT_DOUBLE_EQ(ledger.spent_seconds(), 5.25);
}

TEST(PassLedger, AsksNobodyWhereItIsToBeUsedAlways) {
  PassLedger ledger([](bool) { return 0.0; }, /*always=*/true);
  EXPECT_TRUE(ledger.Begin(kBatch, true));
  EXPECT_TRUE(ledger.in_use());
  EXPECT_EQ(ledger.patience(7), 7);
  EXPECT_EQ(ledger.estimates().state, CostModel::State::kOn);
  EXPECT_FALSE(ledger.News().has_value());
}

}  // namespace
}  // namespace egeria::cache

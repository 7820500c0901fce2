#include "worker/freeze/partition.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::worker {
namespace {

using ::testing::HasSubstr;

// The shape of a CIFAR ResNet: three stages, each with four times the parameters of the one before.
std::vector<BlockInfo> ResNetLike(int blocks_per_stage) {
  std::vector<BlockInfo> blocks = {{"stem", "stem", 464}};
  int64_t size = 4'700;
  for (const char* stage : {"stage1", "stage2", "stage3"}) {
    for (int b = 0; b < blocks_per_stage; ++b) blocks.push_back({absl::StrCat(stage, ".block", b), stage, size});
    size *= 4;
  }
  blocks.push_back({"head", "head", 650});
  return blocks;
}

std::vector<std::string> Names(const std::vector<ModuleCut>& cuts) {
  std::vector<std::string> names;
  for (const ModuleCut& cut : cuts) names.push_back(cut.name);
  return names;
}

void ExpectCovers(const std::vector<ModuleCut>& cuts, size_t blocks) {
  int next = 0;
  for (const ModuleCut& cut : cuts) {
    EXPECT_EQ(cut.begin, next);
    EXPECT_LT(cut.begin, cut.end);
    next = cut.end;
  }
  EXPECT_EQ(next, static_cast<int>(blocks));
}

TEST(Partition, SplitsLargeStagesFinerAndKeepsSmallOnesWhole) {
  const auto cuts = Partition(ResNetLike(3), {});
  ASSERT_TRUE(cuts.ok()) << cuts.status();
  EXPECT_THAT(Names(*cuts), ::testing::ElementsAre("stem-stage1.block2", "stage2.block0-stage2.block1", "stage2.block2",
                                                   "stage3.block0", "stage3.block1", "stage3.block2", "head"));
}

TEST(Partition, PiecesOfAStageAreOfSimilarSize) {
  const std::vector<BlockInfo> blocks = ResNetLike(9);
  const auto cuts = Partition(blocks, {});
  ASSERT_TRUE(cuts.ok());
  ExpectCovers(*cuts, blocks.size());
  for (const ModuleCut& cut : *cuts) {
    if (blocks[cut.begin].stage != "stage3") continue;
    EXPECT_GE(cut.end - cut.begin, 1);
    EXPECT_LE(cut.end - cut.begin, 2);
  }
}

TEST(Partition, NeverJoinsTheHeadToAnything) {
  // A stage before the head that is too small to stand alone stands alone nevertheless.
  const auto cuts = Partition({{"a", "a", 1'000}, {"b", "b", 1}, {"head", "head", 1}}, {});
  ASSERT_TRUE(cuts.ok());
  EXPECT_THAT(Names(*cuts), ::testing::ElementsAre("a", "b", "head"));
}

TEST(Partition, TinyStagesJoinTheNextOneHoweverFineThatIsCut) {
  // A language model: two embeddings, blocks each of which is as large as a piece, a head.
  const auto cuts = Partition({{"tokens", "tokens", 2},
                               {"positions", "positions", 2},
                               {"blocks.0", "blocks", 330},
                               {"blocks.1", "blocks", 330},
                               {"blocks.2", "blocks", 330},
                               {"head", "head", 6}},
                              {});
  ASSERT_TRUE(cuts.ok());
  EXPECT_THAT(Names(*cuts), ::testing::ElementsAre("tokens-blocks.0", "blocks.1", "blocks.2", "head"));
}

TEST(Partition, CoversEveryBlockForEveryTarget) {
  for (const double target : {0.01, 0.05, 0.1, 0.3, 0.9, 5.0}) {
    for (const int size : {1, 2, 3, 9, 18}) {
      const std::vector<BlockInfo> blocks = ResNetLike(size);
      const auto cuts = Partition(blocks, {.target_share = target});
      ASSERT_TRUE(cuts.ok());
      ExpectCovers(*cuts, blocks.size());
      EXPECT_EQ(cuts->back().name, "head");
    }
  }
}

TEST(Partition, PatternsOverrideIt) {
  const auto cuts =
      Partition(ResNetLike(3), {.patterns = {"stem|stage[12]\\..*", "stage3\\.block[01]", "stage3.block2|head"}});
  ASSERT_TRUE(cuts.ok()) << cuts.status();
  EXPECT_THAT(Names(*cuts),
              ::testing::ElementsAre("stem-stage2.block2", "stage3.block0-stage3.block1", "stage3.block2-head"));
}

TEST(Partition, RefusesPatternsThatMakeNoPartition) {
  const std::vector<BlockInfo> blocks = ResNetLike(3);
  auto message = [&](std::vector<std::string> patterns) {
    const auto cuts = Partition(blocks, {.patterns = std::move(patterns)});
    EXPECT_EQ(cuts.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(cuts.status().message());
  };
  EXPECT_THAT(message({"("}), HasSubstr("not a regular expression"));
  EXPECT_THAT(message({"stem", "nothing"}), HasSubstr("matches no block"));
  EXPECT_THAT(message({"stem", "head"}), HasSubstr("no pattern matches block 'stage1.block0'"));
  EXPECT_THAT(message({"stem", "stem|.*"}), HasSubstr("matches both"));
  EXPECT_THAT(message({"head", "stem|stage.*"}), HasSubstr("out of order"));
  EXPECT_THAT(message({"stem|head", "stage.*"}), HasSubstr("out of order"));
  EXPECT_THAT(message({".*"}), HasSubstr("one layer module only"));
}

TEST(Partition, RefusesAModelOfOneBlock) { EXPECT_FALSE(Partition({{"all", "all", 10}}, {}).ok()); }

}  // namespace
}  // namespace egeria::worker

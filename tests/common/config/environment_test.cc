#include "common/config/environment.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::config {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(UnknownVariables, NamesTheNearestOneThatIsRead) {
  EXPECT_THAT(UnknownVariables({{"EGERIA_ENABLE", "0"}, {"EGERIA_POLCY", "auto"}}),
              ElementsAre("EGERIA_ENABLE is set, but nothing reads it; the nearest variable that is read is "
                          "EGERIA_ENABLED",
                          "EGERIA_POLCY is set, but nothing reads it; the nearest variable that is read is "
                          "EGERIA_POLICY"));
}

TEST(UnknownVariables, NamesOneThatIsNearNone) {
  EXPECT_THAT(
      UnknownVariables({{"EGERIA_XYXYXYXYXY", "0"}}),
      ElementsAre("EGERIA_XYXYXYXYXY is set, but nothing reads it; docs/reference/config.md lists what is read"));
  EXPECT_THAT(UnknownVariables({{"EGERIA_OFF", "1"}})[0], ::testing::HasSubstr("EGERIA_ENABLED"));
}

TEST(UnknownVariables, LeavesWhatIsReadAndWhatIsNotEgerias) {
  EXPECT_THAT(
      UnknownVariables(
          {{"EGERIA_OBSERVE", "1"}, {"EGERIA_NODE", "host"}, {"EGERIAN", "1"}, {"PATH", "/bin"}, {"AEGERIA_X", ""}}),
      IsEmpty());
}

TEST(UnknownVariables, LeavesTheDaemonsOptionsUnlessATrainingsIsMeant) {
  EXPECT_THAT(UnknownVariables({{"EGERIA_CACHE_SOFT_QUOTA", "1GiB"}, {"EGERIA_CONTROLLER_REFERENCE_THREADS", "2"}}),
              IsEmpty());
  EXPECT_EQ(UnknownVariables({{"EGERIA_CACHE_FORMATS", "fp16"}}).size(), 1u);
}

TEST(EditDistance, CountsInsertionsDeletionsAndReplacements) {
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("same", "same"), 0u);
}

}  // namespace
}  // namespace egeria::config

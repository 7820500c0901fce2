#include "controller/web/reference_watch.h"

#include "gtest/gtest.h"

namespace egeria::controller {
namespace {

TEST(ReferenceWatch, SaysThatSamplesWaitForTooLong) {
  ReferenceWatch watch;
  reference::EvaluatorCounters counters;
  absl::Time now = absl::UnixEpoch();
  const auto after = [&](absl::Duration time) { return watch.Look(counters, now += time); };
  EXPECT_TRUE(after(absl::ZeroDuration()).ok());
  EXPECT_TRUE(after(absl::Hours(1)).ok()) << "nothing waits";
  counters.queued_bytes = 1'000;
  EXPECT_TRUE(after(absl::Minutes(4)).ok());
  counters.evaluated = 1;
  EXPECT_TRUE(after(absl::Minutes(4)).ok());
  EXPECT_TRUE(after(absl::Minutes(4)).ok());
  EXPECT_FALSE(after(absl::Minutes(4)).ok());
  counters.engine_ends["deadline"] = 1;
  EXPECT_TRUE(after(absl::Minutes(4)).ok()) << "it has been started again";
  EXPECT_FALSE(after(absl::Minutes(6)).ok());
  counters.queued_bytes = 0;
  EXPECT_TRUE(after(absl::Minutes(1)).ok());
}

}  // namespace
}  // namespace egeria::controller

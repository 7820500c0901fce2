#include "controller/job/gradient_requests.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/job/facts.h"

namespace egeria::controller {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::GradientReading Reading(int64_t step, int first_module = 0, int modules = 3) {
  v1::GradientReading reading;
  reading.set_step(step);
  reading.set_first_module(first_module);
  reading.set_parts(2);
  for (int i = first_module; i < modules; ++i) {
    reading.add_mean_of_squares(2);
    reading.add_square_of_mean(1);
  }
  return reading;
}

TEST(CheckGradients, TakesOneOfEachForEveryModuleFromTheFirstOn) {
  EXPECT_TRUE(CheckGradients(Reading(5), 3).ok());
  EXPECT_TRUE(CheckGradients(Reading(5, 2), 3).ok());
  EXPECT_THAT(Why(CheckGradients(Reading(5), 4)), StartsWith("[BAD_GRADIENTS] gradients of 3 and 3 modules"));
  v1::GradientReading reading = Reading(5);
  reading.add_square_of_mean(1);
  EXPECT_THAT(Why(CheckGradients(reading, 3)), StartsWith("[BAD_GRADIENTS]"));
  EXPECT_THAT(Why(CheckGradients(Reading(5, 3), 3)), StartsWith("[BAD_GRADIENTS]"));
  EXPECT_THAT(Why(CheckGradients(Reading(5, -1), 3)), StartsWith("[BAD_GRADIENTS]"));
}

TEST(CheckGradients, RefusesWhatCannotBe) {
  v1::GradientReading reading = Reading(5);
  reading.set_square_of_mean(1, std::numeric_limits<double>::infinity());
  EXPECT_THAT(Why(CheckGradients(reading, 3)), StartsWith("[GRADIENTS_NOT_FINITE]"));
  reading.set_square_of_mean(1, -1e-9);
  EXPECT_TRUE(CheckGradients(reading, 3).ok()) << "of steps in a row it is an estimate";
  reading.set_mean_of_squares(1, -1e-9);
  EXPECT_THAT(Why(CheckGradients(reading, 3)), StartsWith("[BAD_GRADIENTS]"));
  reading = Reading(5);
  reading.set_parts(0);
  EXPECT_THAT(Why(CheckGradients(reading, 3)), HasSubstr("0 parts"));
  EXPECT_THAT(Why(CheckGradients(Reading(-1), 3)), StartsWith("[BAD_GRADIENTS]"));
  reading = Reading(5);
  reading.add_progress(-1);
  EXPECT_THAT(Why(CheckGradients(reading, 3)), HasSubstr("progress of 1 modules"));
  for (const double value : {0.0, std::numeric_limits<double>::quiet_NaN()}) reading.add_progress(value);
  EXPECT_THAT(Why(CheckGradients(reading, 3)), StartsWith("[GRADIENTS_NOT_FINITE]"));
  reading.set_progress(2, 1e-9);
  EXPECT_TRUE(CheckGradients(reading, 3).ok()) << "an estimate may be negative";
  reading = Reading(5);
  reading.set_samples(-1);
  EXPECT_THAT(Why(CheckGradients(reading, 3)), StartsWith("[BAD_GRADIENTS]"));
}

TEST(GradientRequests, RenewTheirVersionWithWhatTheyAskFor) {
  GradientRequests requests;
  EXPECT_FALSE(requests.Update(std::nullopt, 0, kStart));
  EXPECT_FALSE(requests.request());
  EXPECT_TRUE(requests.Update(policy::GradientMonitoring{5, 1}, 0, kStart));
  const v1::GradientRequest first = *requests.request();
  EXPECT_EQ(first.interval_steps(), 5);
  EXPECT_EQ(first.first_module(), 1);
  EXPECT_FALSE(requests.Update(policy::GradientMonitoring{5, 1}, 0, kStart + absl::Seconds(3)));
  EXPECT_EQ(requests.request()->version(), first.version());
  EXPECT_TRUE(requests.Update(policy::GradientMonitoring{5, 0}, 0, kStart));
  EXPECT_GT(requests.request()->version(), first.version());
  const int64_t second = requests.request()->version();
  EXPECT_TRUE(requests.Update(policy::GradientMonitoring{5, 0}, 1, kStart));
  EXPECT_GT(requests.request()->version(), second) << "of another generation";
  EXPECT_TRUE(requests.Update(std::nullopt, 1, kStart));
  EXPECT_FALSE(requests.request());
}

TEST(GradientRequests, VersionsRiseOverARestart) {
  GradientRequests before, after;
  before.Update(policy::GradientMonitoring{5, 0}, 0, kStart);
  after.Update(policy::GradientMonitoring{5, 0}, 0, kStart + absl::Seconds(1));
  EXPECT_GT(after.request()->version(), before.request()->version());
}

TEST(GradientRequests, TakeEachStepOnceAndOnlyWhatWasAskedFor) {
  GradientRequests requests;
  EXPECT_THAT(Why(requests.Check(Reading(5))), StartsWith("[STALE_REQUEST]"));
  requests.Update(policy::GradientMonitoring{5, 0}, 0, kStart);
  v1::GradientReading reading = Reading(5);
  EXPECT_THAT(Why(requests.Check(reading)), StartsWith("[STALE_REQUEST]")) << "of no version";
  reading.set_request_version(requests.request()->version());
  ASSERT_TRUE(requests.Check(reading).ok());
  requests.Taken(reading);
  EXPECT_THAT(Why(requests.Check(reading)), HasSubstr("step 5 has been told of already"));
  requests.Update(policy::GradientMonitoring{5, 0}, 1, kStart);
  reading.set_step(3);
  reading.set_request_version(requests.request()->version());
  EXPECT_TRUE(requests.Check(reading).ok()) << "a restart may go back";
}

}  // namespace
}  // namespace egeria::controller

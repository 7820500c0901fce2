#include "controller/job/curve.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::controller {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Point = Curve::Point;

TEST(Curve, KeepsWhatItIsGivenWhileThereIsRoom) {
  Curve curve(4);
  EXPECT_THAT(curve.points(), IsEmpty());
  for (int64_t step : {3, 5, 1'000}) curve.Add(step, static_cast<double>(step));
  EXPECT_THAT(curve.points(), ElementsAre(Point{3, 3.0}, Point{5, 5.0}, Point{1'000, 1'000.0}));
}

TEST(Curve, TakesMeansOfMoreStepsWhereThereAreTooManyPoints) {
  Curve curve(4);
  for (int64_t step = 0; step < 16; ++step) curve.Add(step, static_cast<double>(step));
  EXPECT_THAT(curve.points(), ElementsAre(Point{3, 1.5}, Point{7, 5.5}, Point{11, 9.5}, Point{15, 13.5}));
  curve.Add(1'000'000, 7);
  EXPECT_THAT(curve.points(), ElementsAre(Point{7, 3.5}, Point{15, 11.5}, Point{1'000'000, 7.0}));
}

TEST(Curve, LeavesOutWhatIsNoNumberAndWhatComesAgain) {
  Curve curve(4);
  curve.Add(1, 1);
  curve.Add(1, 2);
  curve.Add(0, 3);
  curve.Add(2, std::nan(""));
  curve.Add(3, std::numeric_limits<double>::infinity());
  curve.Add(-1, 4);
  EXPECT_THAT(curve.points(), ElementsAre(Point{1, 1.0}));
}

TEST(Curve, ForgetsWhatCameAfterACheckpoint) {
  Curve curve(8);
  for (int64_t step = 0; step < 6; ++step) curve.Add(step, 1);
  curve.CutAfter(2);
  curve.Add(3, 5);
  EXPECT_THAT(curve.points(), ElementsAre(Point{0, 1.0}, Point{1, 1.0}, Point{2, 1.0}, Point{3, 5.0}));
}

TEST(Curve, NeverHasMorePointsThanItMay) {
  Curve curve(100);
  for (int64_t step = 0; step < 100'000; step += 1 + step % 7) {
    curve.Add(step, 1);
    ASSERT_LE(curve.points().size(), 100u);
  }
  EXPECT_GE(curve.points().size(), 50u);
}

}  // namespace
}  // namespace egeria::controller

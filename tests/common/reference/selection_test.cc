#include "common/reference/selection.h"

#include <gtest/gtest.h>

namespace egeria::reference {
namespace {

std::vector<BackendMeasurement> Measured(double int8_noise, double bf16_noise) {
  return {{"int8", 0.1, int8_noise, ""},
          {"bf16", 0.3, bf16_noise, ""},
          {"prepacked", 0.5, 1e-14, ""},
          {"aten", 1.0, 0, ""}};
}

BackendSelector WithSignal(double signal, int readings = 5) {
  BackendSelector selector;
  selector.SetMeasurements(Measured(1e-5, 1e-7));
  for (int i = 0; i < readings; ++i) selector.AddReading(signal);
  return selector;
}

TEST(BackendSelector, KnowsNothingBeforeItHasMeasured) {
  BackendSelector selector;
  EXPECT_TRUE(selector.NeedsMeasurement());
  EXPECT_EQ(selector.Choose(), "");
}

TEST(BackendSelector, TakesOnlyExactBackendsWhileTheSignalIsUnknown) {
  EXPECT_EQ(WithSignal(1e-3, 2).Choose(), "prepacked");
  EXPECT_EQ(WithSignal(1e-3, 3).Choose(), "int8");
}

TEST(BackendSelector, TakesTheFastestWhoseNoiseIsWellUnderTheSignal) {
  EXPECT_EQ(WithSignal(1.01e-4).Choose(), "int8");
  EXPECT_EQ(WithSignal(0.99e-4).Choose(), "bf16");
  EXPECT_EQ(WithSignal(1e-7).Choose(), "prepacked");
  EXPECT_EQ(WithSignal(0).Choose(), "aten");
}

TEST(BackendSelector, RefusesANoisyBackendAsTheSignalShrinks) {
  BackendSelector selector = WithSignal(1e-3, 9);
  EXPECT_EQ(selector.Choose(), "int8");
  EXPECT_FALSE(selector.NeedsMeasurement());
  for (int i = 0; i < 4; ++i) selector.AddReading(1e-6);  // the median still is 1e-3
  EXPECT_EQ(selector.Choose(), "int8");
  selector.AddReading(1e-6);
  EXPECT_EQ(selector.Choose(), "bf16");
  EXPECT_TRUE(selector.NeedsMeasurement());
  selector.SetMeasurements(Measured(1e-8, 1e-7));  // ranges are narrower by now
  EXPECT_FALSE(selector.NeedsMeasurement());
  EXPECT_EQ(selector.Choose(), "int8");
}

TEST(BackendSelector, FollowsTheNoiseThatIsMeasuredAfterASnapshot) {
  BackendSelector selector = WithSignal(1e-3);
  selector.UpdateNoise("int8", 1e-3);
  EXPECT_EQ(selector.Choose(), "bf16");
  selector.UpdateNoise("int8", 1e-6);  // half of the last value still counts
  EXPECT_EQ(selector.Choose(), "bf16");
  for (int i = 0; i < 3; ++i) selector.UpdateNoise("int8", 1e-6);
  EXPECT_EQ(selector.Choose(), "int8");
}

TEST(BackendSelector, FallsBackFromABackendThatCannotRunTheModule) {
  std::vector<BackendMeasurement> measurements = Measured(1e-9, 1e-9);
  measurements[0].refusal = "the operator is missing";
  BackendSelector selector;
  selector.SetMeasurements(measurements);
  for (int i = 0; i < 3; ++i) selector.AddReading(1e-3);
  EXPECT_EQ(selector.Choose(), "bf16");
  selector.Refuse("bf16", "failed");
  EXPECT_EQ(selector.Choose(), "prepacked");
  selector.Refuse("prepacked", "failed");
  EXPECT_EQ(selector.Choose(), "aten");
}

}  // namespace
}  // namespace egeria::reference

#include "common/policy/rules/snr_gate.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/policy/simulated_training.h"

namespace egeria::policy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns a gate that has read so many gradients of modules with these ratios.
SnrGate GateOf(const std::vector<double>& snrs, int readings = 60, int64_t samples = 64) {
  SnrGate gate(0.05, 0.03, 100, 16, std::vector<double>(snrs.size(), 1.0));
  SimulatedGradients gradients(/*seed=*/1, /*parts=*/2, /*dimensions=*/600);
  for (int step = 1; step <= readings; ++step) gate.Add(gradients.Reading(step, 0, snrs, samples));
  return gate;
}

TEST(SnrGate, LetsFreezeWhatSurelyIsNoise) {
  const SnrGate gate = GateOf({0.002, 0.002, 0.002, 0.3});
  EXPECT_FALSE(gate.Refusal(0, 2, 0));
  EXPECT_THAT(gate.Refusal(0, 4, 0).value_or(""), HasSubstr("module 3: gradient SNR"));
}

ModuleStatus StatusOf(const SnrGate& gate, size_t module) {
  PolicyStatus status;
  status.modules.resize(2);
  return gate.With(std::move(status)).modules[module];
}

TEST(SnrGate, TakesDoubtForAReasonOnlyWhereItIsToldTo) {
  const SnrGate gate = GateOf({0.05, 0.05, 0.05, 0.05}, 16);
  EXPECT_THAT(gate.Refusal(0, 1, 0).value_or(""), HasSubstr("is not surely under 0.05"));
  EXPECT_FALSE(gate.ClearSignal(0, 1));
}

TEST(SnrGate, NeedsAsManyReadingsAsAnEstimate) {
  const SnrGate gate = GateOf({0.002, 0.002}, 15);
  EXPECT_FALSE(gate.HasEstimate(0));
  EXPECT_THAT(gate.Refusal(0, 1, 0).value_or(""), HasSubstr("module 0 has 15 gradient readings, of which 16 make"));
  EXPECT_FALSE(gate.ClearSignal(0, 1)) << "no readings, no veto";
  EXPECT_EQ(gate.Describe(1, 0), "");
  EXPECT_FALSE(StatusOf(gate, 0).snr);
}

TEST(SnrGate, SeesAClearSignalOfTheNewModules) {
  const SnrGate gate = GateOf({0.3, 0.002, 0.002, 0.3});
  EXPECT_THAT(gate.ClearSignal(0, 1).value_or(""), HasSubstr("module 0: gradient SNR"));
  EXPECT_FALSE(gate.ClearSignal(1, 3)) << "what is frozen already does not count";
  EXPECT_TRUE(gate.ClearSignal(1, 4));
}

TEST(SnrGate, LeavesOutModulesWithoutARate) {
  const SnrGate gate = GateOf({0.3, 0.002, 0.002});
  EXPECT_TRUE(gate.ClearSignal(0, 2));
  EXPECT_FALSE(gate.ClearSignal(0, 2, /*exempt=*/1));
  EXPECT_FALSE(gate.Refusal(0, 2, /*exempt=*/1));
}

TEST(SnrGate, IsStricterWithModulesOfTheLastThird) {
  SnrGate gate(0.5, 0.01, 100, 16, {1, 1, 1});
  SimulatedGradients gradients(1, 2, 600);
  for (int step = 1; step <= 60; ++step) gate.Add(gradients.Reading(step, 0, {0.1, 0.1, 0.1}));
  EXPECT_FALSE(gate.ClearSignal(0, 2));
  EXPECT_THAT(gate.ClearSignal(2, 3).value_or(""), HasSubstr("is over 0.01"));
}

TEST(SnrGate, ScalesItsThresholdsButToNoMoreThanNineTenths) {
  SnrGate gate = GateOf({0.3, 0.3});
  EXPECT_TRUE(gate.ClearSignal(0, 1));
  gate.ScaleThresholds(10);
  EXPECT_FALSE(gate.ClearSignal(0, 1));
  SnrGate alive = GateOf({0.97, 0.97});
  alive.ScaleThresholds(1e6);
  EXPECT_THAT(alive.ClearSignal(0, 1).value_or(""), HasSubstr("is over 0.9"));
}

TEST(SnrGate, BringsItsThresholdsToTheBatch) {
  EXPECT_TRUE(GateOf({0.3, 0.3}, 60, 64).ClearSignal(0, 1));
  EXPECT_FALSE(GateOf({0.3, 0.3}, 60, 1024).ClearSignal(0, 1)) << ".05 becomes .46";
}

TEST(SnrGate, ForgetsItsReadings) {
  SnrGate gate = GateOf({0.3, 0.3});
  EXPECT_TRUE(StatusOf(gate, 0).snr);
  EXPECT_EQ(StatusOf(gate, 0).snr_threshold, 0.05);
  gate.Forget();
  EXPECT_FALSE(StatusOf(gate, 0).snr);
}

}  // namespace
}  // namespace egeria::policy

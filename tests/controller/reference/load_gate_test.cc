#include "controller/reference/load_gate.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace egeria::reference {
namespace {

TEST(ProcStat, CountsEverythingButIdleAndWaitingAsBusy) {
  const auto times = ParseProcStat("cpu  100 10 20 300 40 1 2 3 50 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
  ASSERT_TRUE(times.has_value());
  EXPECT_EQ(times->total, 476);
  EXPECT_EQ(times->busy, 136);
}

TEST(ProcStat, RefusesWhatIsNoSuchLine) {
  EXPECT_FALSE(ParseProcStat("").has_value());
  EXPECT_FALSE(ParseProcStat("cpu0 1 2 3 4 5 6 7 8").has_value());
  EXPECT_FALSE(ParseProcStat("cpu 1 2 3").has_value());
  EXPECT_FALSE(ParseProcStat("cpu a b c d").has_value());
}

TEST(CpuLoadMeter, GivesTheShareThatOthersUsedSinceTheLastCall) {
  std::string path = ::testing::TempDir() + "/procstat.XXXXXX";
  const int file = mkstemp(path.data());
  ASSERT_GE(file, 0);
  const auto write = [&](const std::string& line) { std::ofstream(path) << line << "\n"; };
  write("cpu 1000 0 0 1000 0 0 0 0");
  CpuLoadMeter meter(path);
  EXPECT_EQ(meter.Read(), 0);  // no time has passed
  write("cpu 7001000 0 0 3001000 0 0 0 0");
  EXPECT_NEAR(meter.Read(), 0.7, 1e-3);  // this process used far less than that
  write("cpu 7001000 0 0 13001000 0 0 0 0");
  EXPECT_NEAR(meter.Read(), 0, 1e-3);
  std::remove(path.c_str());
  EXPECT_NEAR(meter.Read(), 0, 1e-3);  // the last known value
}

TEST(CpuLoadMeter, ReadsThisMachine) {
  CpuLoadMeter meter;
  const double load = meter.Read();
  EXPECT_GE(load, 0);
  EXPECT_LE(load, 1);
}

}  // namespace
}  // namespace egeria::reference

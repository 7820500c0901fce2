#include "controller/config/controller_options.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::controller {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::Status Load(ControllerOptions* options, std::vector<const char*> flags,
                  const config::Environment& environment = {}, std::string* printed = nullptr) {
  flags.insert(flags.begin(), "egeria-controller");
  std::ostringstream out;
  const auto outcome =
      ControllerOptionSet(options, "0").Load(static_cast<int>(flags.size()), flags.data(), environment, out);
  if (printed != nullptr) *printed = out.str();
  return outcome.status();
}

std::string ErrorOf(std::vector<const char*> flags) {
  ControllerOptions options;
  options.state_dir = "/state";
  return std::string(Load(&options, std::move(flags)).message());
}

TEST(ControllerOptions, TheSampleFileSaysEveryOptionAndItsDefault) {
  const std::string sample = std::string(EGERIA_SOURCE_DIR) + "/deploy/egeria-controller.yaml";
  ControllerOptions defaults, from_sample;
  defaults.state_dir = DefaultStateDir({}, /*root=*/true);
  std::string printed_defaults, printed_sample;
  ASSERT_TRUE(Load(&defaults, {"--print-config"}, {}, &printed_defaults).ok());
  ASSERT_TRUE(Load(&from_sample, {"--config", sample.c_str(), "--print-config"}, {}, &printed_sample).ok());
  EXPECT_EQ(printed_sample, printed_defaults);
  std::ifstream file(sample);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr(printed_defaults)) << "the file is a head and what --print-config prints";
}

TEST(ControllerOptions, TheStateLiesWhereItsOwnerMayWrite) {
  EXPECT_EQ(DefaultStateDir({{"HOME", "/home/a"}}, true), "/var/lib/egeria");
  EXPECT_EQ(DefaultStateDir({{"HOME", "/home/a"}}, false), "/home/a/.local/state/egeria");
  EXPECT_EQ(DefaultStateDir({{"HOME", "/home/a"}, {"XDG_STATE_HOME", "/s"}}, false), "/s/egeria");
}

TEST(ControllerOptions, ListensBesideItsStateByDefault) {
  ControllerOptions options;
  options.state_dir = "/state";
  EXPECT_EQ((*ListenAddresses(options))[0].ToString(), "unix:/state/controller.sock");
  options.listen = {"unix:/a", "127.0.0.1:0"};
  EXPECT_EQ(ListenAddresses(options)->size(), 2u);
}

TEST(ControllerOptions, AnAddressOfTheNetworkNeedsTlsOrAWord) {
  EXPECT_THAT(ErrorOf({"--listen", "0.0.0.0:1"}), StartsWith("[INSECURE_ADDRESS]"));
  EXPECT_EQ(ErrorOf({"--listen", "0.0.0.0:1", "--insecure"}), "");
  EXPECT_NE(ErrorOf({"--listen", "0.0.0.0:1", "--tls-ca", "/nowhere", "--tls-certificate", "/nowhere", "--tls-key",
                     "/nowhere"}),
            "");
}

TEST(ControllerOptions, WrongValuesAreNamed) {
  EXPECT_THAT(ErrorOf({"--listen", "nonsense"}), HasSubstr("nonsense"));
  EXPECT_THAT(ErrorOf({"--reference-scope", "half"}), HasSubstr("module, prefix"));
  EXPECT_THAT(ErrorOf({"--reference-backends", "int8,int4"}), HasSubstr("'int4'"));
  EXPECT_THAT(ErrorOf({"--reference-backends", ""}), HasSubstr("at least one"));
  EXPECT_THAT(ErrorOf({"--reference-cpus", "-1"}), HasSubstr("numbers of CPUs"));
  EXPECT_THAT(ErrorOf({"--max-cpu-load", "2"}), HasSubstr("between 0 and 1"));
  EXPECT_THAT(ErrorOf({"--metrics-listen", "everywhere"}), HasSubstr("--metrics-listen"));
  EXPECT_THAT(ErrorOf({"--heartbeat-interval", "1h"}), HasSubstr("between 50ms and 1m"));
  EXPECT_THAT(ErrorOf({"--retention-finished", "-1h"}), HasSubstr("negative"));
  EXPECT_THAT(ErrorOf({"--limits-upload-bytes", "10"}), HasSubstr("1MiB"));
}

TEST(ControllerOptions, FlagsReachTheirFields) {
  ControllerOptions options;
  options.state_dir = "/state";
  ASSERT_TRUE(Load(&options,
                   {"--reference-cpus", "2,3", "--reference-threads", "2", "--metrics-listen", "none",
                    "--retention-silent", "2d", "--reference-scope", "prefix", "--ready-fd", "7"},
                   {{"EGERIA_CONTROLLER_LIMITS_JOBS", "9"}})
                  .ok());
  EXPECT_THAT(options.reference.cpus, ::testing::ElementsAre(2, 3));
  EXPECT_EQ(options.reference.threads, 2);
  EXPECT_EQ(options.metrics.listen, "none");
  EXPECT_EQ(options.retention.silent, absl::Hours(48));
  EXPECT_EQ(options.limits.jobs, 9);
  EXPECT_EQ(options.ready_fd, 7);
}

}  // namespace
}  // namespace egeria::controller

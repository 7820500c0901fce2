#include "worker/cache/daemon/cache_options.h"

#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/cache/entry/cache_folder.h"

namespace egeria::cache {
namespace {

using ::testing::HasSubstr;

absl::Status Load(std::vector<std::string> arguments, CacheOptions* options,
                  const config::Environment& environment = {}) {
  std::vector<const char*> argv = {"egeria-cache"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out;
  return CacheOptionSet(options).Load(static_cast<int>(argv.size()), argv.data(), environment, out).status();
}

TEST(CacheOptionsTest, TheSampleHasTheDefaultsAndEveryOption) {
  CacheOptions defaults, read;
  defaults.folder = DefaultFolder({}, /*root=*/true);
  ASSERT_TRUE(Load({"--config", std::string(EGERIA_SOURCE_DIR) + "/deploy/egeria-cache.yaml"}, &read).ok());
  EXPECT_EQ(CacheOptionSet(&read).ToYaml(), CacheOptionSet(&defaults).ToYaml());
}

TEST(CacheOptionsTest, FoldersFollowTheUsersCache) {
  EXPECT_EQ(DefaultFolder({}, true), "/var/cache/egeria");
  EXPECT_EQ(DefaultFolder({{"EGERIA_CACHE_FOLDER", "/fast"}}, true), "/fast");
  EXPECT_EQ(DefaultFolder({{"HOME", "/home/u"}, {"XDG_CACHE_HOME", "/c"}}, false), "/c/egeria");
  EXPECT_EQ(DefaultFolder({{"HOME", "/home/u"}}, false), "/home/u/.cache/egeria");
}

TEST(CacheOptionsTest, WrongValuesAreSaid) {
  CacheOptions options;
  options.folder = "/f";
  EXPECT_THAT(std::string(Load({"--listen", "127.0.0.1:1"}, &options).message()), HasSubstr("give unix:/path"));
  options = {.folder = "/f"};
  EXPECT_THAT(std::string(Load({"--quota", "10"}, &options).message()), HasSubstr("at least 1MiB"));
  options = {.folder = "/f"};
  EXPECT_THAT(std::string(Load({"--qouta", "1GiB"}, &options).message()), HasSubstr("quota"));
  options = {.folder = "/f"};
  EXPECT_TRUE(Load({"--quota", "2GiB", "--soft-quota", "1GiB"}, &options).ok());
  EXPECT_EQ(StoreOptions(options).soft_quota_bytes, int64_t{1} << 30);
  options = {.folder = "/f"};
  EXPECT_THAT(std::string(Load({"--quota", "2GiB", "--soft-quota", "3GiB"}, &options).message()),
              HasSubstr("soft_quota: must not be more than quota"));
}

TEST(CacheOptionsTest, MetricsForTheNetworkHaveToBeAskedFor) {
  CacheOptions options = {.folder = "/f"};
  EXPECT_THAT(std::string(Load({"--metrics-listen", "0.0.0.0:9465"}, &options).message()),
              HasSubstr("[INSECURE_ADDRESS]"));
  options = {.folder = "/f"};
  EXPECT_TRUE(Load({"--metrics-listen", "0.0.0.0:9465", "--insecure"}, &options).ok());
}

TEST(CacheOptionsTest, VariablesOfTheTrainingProcessesAreNotItsOwn) {
  CacheOptions options = {.folder = "/f"};
  EXPECT_TRUE(
      Load({}, &options,
           {{"EGERIA_CACHE_USE", "always"}, {"EGERIA_CACHE_PRECISION", "int8"}, {"EGERIA_CACHE_JOB_QUOTA", "1GiB"}})
          .ok());
  EXPECT_THAT(std::string(Load({}, &options, {{"EGERIA_CACHE_FORMATS", "lz4"}}).message()), HasSubstr("not known"));
}

TEST(CacheOptionsTest, TheSocketLiesInTheFolder) {
  CacheOptions options;
  options.folder = "/f";
  EXPECT_EQ(ListenAddress(options)->ToString(), "unix:/f/cache.sock");
}

}  // namespace
}  // namespace egeria::cache

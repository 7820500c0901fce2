#include "common/metrics/metrics_endpoint.h"

#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics/family.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/collectable.h"
#include "prometheus/text_serializer.h"
#include "tests/support/http.h"

namespace egeria::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Seventeen : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    Family family = Family::Counter("things_total", "Things so far.");
    family.Add({{"kind", "good"}}, 17);
    std::move(family).MoveTo(&families);
    return families;
  }
};

TEST(MetricsEndpoint, ServesWhatIsCollected) {
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", std::make_shared<Seventeen>());
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_THAT((*endpoint)->url(), Not(HasSubstr(":0/")));
  EXPECT_THAT(testing::HttpGet((*endpoint)->url()), HasSubstr("things_total{kind=\"good\"} 17"));
  (*endpoint)->Stop();
  EXPECT_EQ(testing::HttpGet((*endpoint)->url()), "");
}

TEST(MetricsEndpoint, NoneServesNothing) {
  auto endpoint = MetricsEndpoint::Start("none", std::make_shared<Seventeen>());
  ASSERT_TRUE(endpoint.ok());
  EXPECT_EQ((*endpoint)->url(), "");
}

TEST(MetricsEndpoint, SaysWhyItCannotListen) {
  auto first = MetricsEndpoint::Start("localhost:0", std::make_shared<Seventeen>());
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string url = (*first)->url();
  const std::string address = url.substr(7, url.size() - 7 - 8);
  auto second = MetricsEndpoint::Start(address, std::make_shared<Seventeen>());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), StartsWith("[CANNOT_LISTEN] metrics at " + address));
  EXPECT_EQ(MetricsEndpoint::Start("unix:/tmp/x", nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MetricsEndpoint::Start("nonsense", nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Family, WithoutSeriesIsLeftOut) {
  std::vector<prometheus::MetricFamily> families;
  Family::Gauge("empty", "Nothing.").MoveTo(&families);
  EXPECT_TRUE(families.empty());
}

TEST(ProcessMetrics, AreThoseOfThisProcess) {
  const auto families = ProcessMetrics();
  ASSERT_EQ(families.size(), 3u);
  for (const auto& family : families) {
    const double value =
        family.type == prometheus::MetricType::Counter ? family.metric[0].counter.value : family.metric[0].gauge.value;
    EXPECT_GT(value, 0) << family.name;
  }
  const double age = static_cast<double>(std::time(nullptr)) - families[2].metric[0].gauge.value;
  EXPECT_GT(age, -2);
  EXPECT_LT(age, 3'600);
}

}  // namespace
}  // namespace egeria::metrics

#include "common/metrics/metrics_endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/metrics/family.h"
#include "common/metrics/health.h"
#include "common/thread/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/collectable.h"
#include "prometheus/text_serializer.h"
#include "tests/support/http.h"

namespace egeria::metrics {
namespace {

using ::testing::AllOf;
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

// Connections to the port of `url`, of which each has sent `bytes`.
class Clients {
 public:
  Clients(const std::string& url, int count, const std::string& bytes) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < count; ++i) {
      sockets_.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(connect(sockets_.back(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
      EXPECT_EQ(send(sockets_.back(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    }
  }
  ~Clients() {
    for (const int socket : sockets_) close(socket);
  }
  std::string Answer(size_t i) const {
    const timeval patience = {30, 0};
    setsockopt(sockets_[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    std::string answer;
    char buffer[4096];
    for (ssize_t count; (count = recv(sockets_[i], buffer, sizeof(buffer), 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(count));
    }
    return answer;
  }

 private:
  std::vector<int> sockets_;
};

TEST(MetricsEndpoint, AnswersWhoeverElseIsConnected) {
  Health health;
  health.SetServing(true);
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", std::make_shared<Seventeen>(), &health);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string url = (*endpoint)->url(), base = url.substr(0, url.rfind('/'));
  const Clients idle(base, 100, ""), slow(base, 100, "GET /metrics HTTP/1.1\r\nHost: ");
  const Clients many(base, 500, "x");
  const auto before = std::chrono::steady_clock::now();
  EXPECT_THAT(testing::HttpGet(url), HasSubstr("17"));
  EXPECT_EQ(testing::HttpGet(base + "/healthz"), "ok\n");
  EXPECT_EQ(testing::HttpGet(base + "/readyz"), "ok\n");
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5)) << "without waiting for any of them";
}

TEST(MetricsEndpoint, SaysWhatIsWrong) {
  Health health(absl::Seconds(1));
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", std::make_shared<Seventeen>(), &health);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string url = (*endpoint)->url(), base = url.substr(0, url.rfind('/'));
  const auto answer = [&](const std::string& path) {
    return Clients(base, 1, "GET " + path + " HTTP/1.1\r\n\r\n").Answer(0);
  };
  EXPECT_THAT(answer("/readyz"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("starting or stopping")));
  health.SetServing(true);
  health.Beat();
  EXPECT_THAT(answer("/readyz"), StartsWith("HTTP/1.1 200 "));
  health.SetDegraded("journal", absl::UnavailableError("the disk is full"));
  EXPECT_THAT(answer("/healthz"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("journal: the disk is full\n")));
  EXPECT_THAT(answer("/readyz"), StartsWith("HTTP/1.1 200 "));
  health.SetDegraded("journal", absl::OkStatus());
  EXPECT_THAT(answer("/healthz"), StartsWith("HTTP/1.1 200 "));
  health.SetUseless("unix:/x", absl::UnavailableError("it is deaf"));
  EXPECT_THAT(answer("/readyz"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("unix:/x: it is deaf\n")));
  health.SetUseless("unix:/x", absl::OkStatus());
  std::this_thread::sleep_for(std::chrono::milliseconds(2'100));
  EXPECT_THAT(answer("/healthz"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("stuck")));
  health.Beat();
  EXPECT_THAT(answer("/healthz"), StartsWith("HTTP/1.1 200 "));
}

class Stuck : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    const MutexLock lock(&mutex);
    return {};
  }
  mutable Mutex mutex;
};

TEST(MetricsEndpoint, TellsItsHealthWhileMetricsWait) {
  Health health;
  health.SetServing(true);
  const auto stuck = std::make_shared<Stuck>();
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", stuck, &health);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string url = (*endpoint)->url(), base = url.substr(0, url.rfind('/'));
  stuck->mutex.Lock();
  const Clients scrapes(base, 5, "GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_EQ(testing::HttpGet(base + "/healthz"), "ok\n");
  stuck->mutex.Unlock();
  for (size_t i = 0; i < 5; ++i) EXPECT_THAT(scrapes.Answer(i), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST(MetricsEndpoint, RefusesWhatIsNoRequestForAPage) {
  auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", std::make_shared<Seventeen>());
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string url = (*endpoint)->url(), base = url.substr(0, url.rfind('/'));
  const auto answer = [&](const std::string& request) { return Clients(base, 1, request).Answer(0).substr(9, 3); };
  EXPECT_EQ(answer("GET /metrics?x=1 HTTP/1.1\r\n\r\n"), "200");
  EXPECT_EQ(answer("HEAD /metrics HTTP/1.1\r\n\r\n"), "200");
  EXPECT_EQ(answer("GET / HTTP/1.1\r\n\r\n"), "404");
  EXPECT_EQ(answer("GET /healthz HTTP/1.1\r\n\r\n"), "404") << "there is no health to tell";
  EXPECT_EQ(answer("POST /metrics HTTP/1.1\r\n\r\n"), "405");
  EXPECT_EQ(answer("PRI * HTTP/2.0\r\n\r\n"), "505");
  EXPECT_EQ(answer("GET /metrics FTP/1.0\r\n\r\n"), "400");
  EXPECT_EQ(answer("GET /" + std::string(16'400, 'a')), "414");
  EXPECT_EQ(answer("GET /metrics HTTP/1.1\r\nHost: " + std::string(16'400, 'a')), "431");
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

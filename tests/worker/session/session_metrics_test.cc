#include "worker/session/session_metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Get(int port) {
  const int file = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  if (::connect(file, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return "cannot connect";
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(::send(file, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t count; (count = ::recv(file, buffer, sizeof(buffer), 0)) > 0;) answer.append(buffer, count);
  ::close(file);
  return answer;
}

TEST(SessionMetrics, ServesTheTotalsOverHttpOnAFreePort) {
  const auto metrics = SessionMetrics::Serve("0", "digits");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  SessionTotals totals;
  totals.steps = 120;
  totals.freezes = 2;
  totals.frozen_share = 0.25;
  totals.samples_dropped = 3;
  (*metrics)->Update(totals);
  const std::string text = Get((*metrics)->port());
  EXPECT_THAT(text, HasSubstr("egeria_worker_steps_total{training_job=\"digits\"} 120"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_switches_total{action=\"freeze\",training_job=\"digits\"} 2"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_frozen_parameters_ratio{training_job=\"digits\"} 0.25"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_samples_dropped_total{training_job=\"digits\"} 3"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_build_info{"));
  EXPECT_THAT(text, Not(HasSubstr("rank=")));
}

TEST(SessionMetrics, TellsOfTheCacheWhereThereIsOne) {
  const auto metrics = SessionMetrics::Serve("127.0.0.1:0", "job");
  ASSERT_TRUE(metrics.ok());
  (*metrics)->Update({});
  EXPECT_THAT((*metrics)->Text(), Not(HasSubstr("cache_state")));
  SessionTotals totals;
  totals.cache.state = "trying";
  totals.cache.hits = 64;
  totals.cache.misses = {{"absent", 3}, {"late", 2}};
  totals.cache.batches = {{"ahead", 7}, {"late", 1}};
  totals.cache.waited_seconds = 0.25;
  totals.cache.bytes_read = 4096;
  totals.cache.saved_seconds = -0.5;
  (*metrics)->Update(totals);
  totals.cache.state = "off";
  totals.cache.misses["late"] = 5;
  (*metrics)->Update(totals);
  const std::string text = (*metrics)->Text();
  EXPECT_THAT(text, HasSubstr("egeria_worker_cache_samples_total{result=\"hit\",training_job=\"job\"} 64"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_cache_samples_total{result=\"late\",training_job=\"job\"} 5"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_cache_batches_total{reading=\"ahead\",training_job=\"job\"} 7"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_cache_batches_total{reading=\"late\",training_job=\"job\"} 1"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_cache_waited_seconds_total{training_job=\"job\"} 0.25"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_cache_read_bytes_total{training_job=\"job\"} 4096"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_cache_saved_seconds{training_job=\"job\"} -0.5"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_cache_state{state=\"off\",training_job=\"job\"} 1"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_cache_state{state=\"trying\",training_job=\"job\"} 0"));
}

TEST(SessionMetrics, TellsOfTheAccountOnceThereIsOne) {
  const auto metrics = SessionMetrics::Serve("127.0.0.1:0", "job");
  ASSERT_TRUE(metrics.ok());
  SessionTotals totals;
  totals.account.spent_seconds = {{"probes", 1.5}};
  (*metrics)->Update(totals);
  EXPECT_THAT((*metrics)->Text(), Not(HasSubstr("egeria_worker_saved_seconds")));
  totals.account.saved_seconds = -0.25;
  totals.account.spent_seconds["switches"] = 0.5;
  (*metrics)->Update(totals);
  const std::string text = (*metrics)->Text();
  EXPECT_THAT(text, HasSubstr("egeria_worker_saved_seconds{training_job=\"job\"} -0.25"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_spent_seconds_total{training_job=\"job\",what=\"probes\"} 1.5"));
  EXPECT_THAT(text, HasSubstr("egeria_worker_spent_seconds_total{training_job=\"job\",what=\"switches\"} 0.5"));
}

TEST(SessionMetrics, CountersNeverFall) {
  const auto metrics = SessionMetrics::Serve("127.0.0.1:0", "job");
  ASSERT_TRUE(metrics.ok());
  SessionTotals totals;
  totals.samples_sent = 10;
  (*metrics)->Update(totals);
  totals.samples_sent = 4;
  (*metrics)->Update(totals);
  EXPECT_THAT((*metrics)->Text(), HasSubstr("egeria_worker_samples_sent_total{training_job=\"job\"} 10"));
}

TEST(SessionMetrics, SaysWhatIsWrongWithAnAddress) {
  EXPECT_THAT(std::string(SessionMetrics::Serve("nonsense", "job").status().message()), HasSubstr("[BAD_ADDRESS]"));
  EXPECT_THAT(std::string(SessionMetrics::Serve("70000", "job").status().message()), HasSubstr("[BAD_ADDRESS]"));
  EXPECT_THAT(std::string(SessionMetrics::Serve("192.0.2.1:1", "job").status().message()),
              HasSubstr("[CANNOT_LISTEN]"));
}

TEST(SessionMetrics, APortThatIsTakenCostsTheMetricsOnly) {
  const auto first = SessionMetrics::ServeIfFree("127.0.0.1:0", "job");
  ASSERT_TRUE(first.ok() && *first != nullptr);
  const auto second = SessionMetrics::ServeIfFree(absl::StrCat("127.0.0.1:", (*first)->port()), "job");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, nullptr);
  EXPECT_EQ(SessionMetrics::ServeIfFree("nonsense", "job").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace egeria::worker

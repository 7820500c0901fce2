// A real controller that demands certificates, and real agents that have one, another one, or none.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "controller/cli/admin_client.h"
#include "controller/job/job_manager.h"
#include "controller/service/controller_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"
#include "tests/support/fake_evaluator.h"
#include "tests/support/temp_folder.h"
#include "tests/worker/agent/agent_test_job.h"
#include "worker/agent/agent.h"

namespace egeria::testing {
namespace {

using controller::ControllerServer;
using controller::JobManager;
using ::testing::HasSubstr;
using ::testing::Not;

template <typename Condition>
bool Eventually(Condition condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

// Sends standard error to a file for as long as it lives, so that a test can wait for what is logged.
class StandardError {
 public:
  explicit StandardError(const std::string& path) : path_(path), before_(dup(STDERR_FILENO)) {
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(file, STDERR_FILENO);
    close(file);
  }
  ~StandardError() {
    dup2(before_, STDERR_FILENO);
    close(before_);
  }

  std::string text() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

 private:
  const std::string path_;
  const int before_;
};

class Tls : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto made = Certificates::Make();
    ASSERT_TRUE(made.ok()) << made.status();
    certificates_ = *std::move(made);
  }
  static void TearDownTestSuite() { certificates_.reset(); }

  void TearDown() override {
    if (manager_ != nullptr) manager_->Stop();
    server_.reset();
  }

  void StartController(const rpc::TlsFiles& tls, std::vector<std::string> operators = {"localhost"}) {
    auto journal = controller::Journal::Open(folder_ / "journal");
    ASSERT_TRUE(journal.ok()) << journal.status();
    auto manager = JobManager::Start({}, *std::move(journal), [this](reference::Evaluator::Callback on_result) {
      auto fake =
          std::make_unique<FakeEvaluator>(std::move(on_result), [](const JobId&, int, int64_t) { return 0.001; });
      evaluator_ = fake.get();
      return absl::StatusOr<std::unique_ptr<reference::Evaluator>>(std::move(fake));
    });
    ASSERT_TRUE(manager.ok()) << manager.status();
    manager_ = *std::move(manager);
    ControllerServer::Options options;
    options.listen = {*rpc::ParseAddress("127.0.0.1:0")};
    options.tls = tls;
    if (!tls.empty()) options.admin_listen = options.listen[0];
    options.operators = std::move(operators);
    auto server = ControllerServer::Start(options, manager_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::unique_ptr<worker::Agent> StartAgent(const rpc::TlsFiles& tls) {
    worker::AgentOptions options;
    options.controller = server_->addresses()[0].ToString();
    options.tls = tls;
    options.reconnect_backoff = absl::Milliseconds(50);
    worker::JobDescription job = worker::TestJob(/*rank=*/0, /*world_size=*/1);
    job.policy_json = R"({"plasticity": {"bootstrap": false}})";
    auto agent = worker::Agent::Start(options, std::move(job));
    EXPECT_TRUE(agent.ok()) << agent.status();
    return agent.ok() ? *std::move(agent) : nullptr;
  }

  // The log line of an agent that does not get through.
  std::string Refusal(const rpc::TlsFiles& tls) {
    const StandardError log(folder_ / "log");
    const std::unique_ptr<worker::Agent> agent = StartAgent(tls);
    EXPECT_TRUE(Eventually([&] { return absl::StrContains(log.text(), "No connection"); }));
    EXPECT_FALSE(agent->counters().connected);
    EXPECT_EQ(manager_->ListJobs().jobs_size(), 0);
    return log.text();
  }

  static inline std::unique_ptr<Certificates> certificates_;
  TempFolder folder_;
  FakeEvaluator* evaluator_ = nullptr;
  std::unique_ptr<JobManager> manager_;
  std::unique_ptr<ControllerServer> server_;
};

TEST_F(Tls, AnAgentWithACertificateOfTheAuthorityIsServed) {
  StartController(certificates_->Of("ours", "ours"));
  const std::unique_ptr<worker::Agent> agent = StartAgent(certificates_->Of("ours", "ours"));
  ASSERT_TRUE(Eventually([&] { return agent->snapshot().has_value(); }));
  const worker::SnapshotRequest wanted = *agent->snapshot();
  worker::Snapshot snapshot = worker::TestSnapshot(static_cast<int>(wanted.module.value()), wanted.version);
  ASSERT_TRUE(agent->Offer(std::move(snapshot)));
  EXPECT_TRUE(Eventually([&] { return evaluator_->counters().snapshots == 1; }));
  EXPECT_TRUE(Eventually([&] { return agent->sampling().has_value(); }));
  EXPECT_EQ(manager_->ListJobs().jobs(0).connected_ranks(), 1);
}

TEST_F(Tls, AnAgentWithoutACertificateIsKeptOutAndToldWhatItNeeds) {
  StartController(certificates_->Of("ours", "ours"));
  EXPECT_THAT(Refusal({}), HasSubstr("set EGERIA_TLS_CA, EGERIA_TLS_CERT and EGERIA_TLS_KEY"));
}

TEST_F(Tls, AnAgentOfAnotherAuthorityIsKeptOutAndToldWhy) {
  StartController(certificates_->Of("ours", "ours"));
  const rpc::TlsFiles files = certificates_->Of("ours", "theirs");
  EXPECT_THAT(Refusal(files), HasSubstr("it may not trust " + files.certificate));
}

TEST_F(Tls, AnAgentRefusesAControllerOfAnotherAuthorityAndSaysWhy) {
  StartController(certificates_->Of("theirs", "ours"));
  const rpc::TlsFiles files = certificates_->Of("theirs", "theirs");
  EXPECT_THAT(Refusal(files), HasSubstr("not signed by an authority in " + files.ca));
}

TEST_F(Tls, AnAgentWithACertificateIsToldThatTheControllerHasNone) {
  StartController({});
  EXPECT_THAT(Refusal(certificates_->Of("ours", "ours")), HasSubstr("the controller has no certificates"));
}

TEST_F(Tls, TheCommandLineIsToldWhatItNeeds) {
  StartController(certificates_->Of("ours", "ours"));
  auto client = cli::AdminClient::Connect("", server_->admin_addresses()[0].ToString());
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status refused = client->ListJobs().status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("set EGERIA_TLS_CA"));
}

TEST_F(Tls, OnlyACertificateThatIsNamedIsAnOperators) {
  const rpc::TlsFiles files = certificates_->Of("ours", "ours");
  setenv("EGERIA_TLS_CA", files.ca.c_str(), 1);
  setenv("EGERIA_TLS_CERT", files.certificate.c_str(), 1);
  setenv("EGERIA_TLS_KEY", files.key.c_str(), 1);
  for (const bool named : {true, false}) {
    StartController(files, {named ? "localhost" : "elsewhere.example"});
    auto client = cli::AdminClient::Connect("", server_->admin_addresses()[0].ToString());
    ASSERT_TRUE(client.ok()) << client.status();
    const absl::Status listed = client->ListJobs().status();
    if (named) {
      EXPECT_TRUE(listed.ok()) << listed;
    } else {
      EXPECT_TRUE(absl::IsPermissionDenied(listed)) << listed;
      EXPECT_THAT(std::string(listed.message()), HasSubstr("[NOT_AN_OPERATOR] certificate:"));
    }
    TearDown();
    manager_.reset();
  }
  for (const char* name : {"EGERIA_TLS_CA", "EGERIA_TLS_CERT", "EGERIA_TLS_KEY"}) unsetenv(name);
}

TEST_F(Tls, CertificatesThatChangeAreTakenWithoutARestart) {
  const rpc::TlsFiles before = certificates_->Of("theirs", "theirs"), after = certificates_->Of("ours", "ours");
  const rpc::TlsFiles files{folder_ / "ca", folder_ / "certificate", folder_ / "key"};
  const auto put = [&](const rpc::TlsFiles& from) {
    for (const auto& [source, target] : {std::pair(from.ca, files.ca), std::pair(from.certificate, files.certificate),
                                         std::pair(from.key, files.key)}) {
      std::filesystem::copy_file(source, target, std::filesystem::copy_options::overwrite_existing);
    }
  };
  put(before);
  StartController(files);
  const std::unique_ptr<worker::Agent> agent = StartAgent(after);
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_FALSE(agent->counters().connected);
  put(after);
  EXPECT_TRUE(Eventually([&] { return agent->counters().connected; }));
}

TEST_F(Tls, AControllerThatIsNotThereIsNoMatterOfCertificates) {
  StartController({});
  server_->Stop();
  EXPECT_THAT(Refusal({}), Not(HasSubstr("TLS")));
}

}  // namespace
}  // namespace egeria::testing

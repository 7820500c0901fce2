// Who may do what with the program egeria-controller, and what it writes down.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cluster/test_cluster.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_folder.h"

namespace egeria::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ControllerAccess : public ::testing::Test {
 protected:
  // A controller that lets every user of the machine in, and the programs find it.
  void SetUp() override { chmod(folder_.path().c_str(), 0755); }

  ChildProcess Start(const std::vector<std::string>& flags = {}) {
    std::vector<std::string> command = {
        EGERIA_CONTROLLER_PROGRAM, "--state-dir", folder_ / "state", "--listen", address(), "--socket-mode", "0666",
        "--metrics-listen",        "none",        "--ready-fd",      "1"};
    command.insert(command.end(), flags.begin(), flags.end());
    auto child = ChildProcess::Start(command, {}, log_);
    EXPECT_TRUE(child.ok()) << child.status();
    return *std::move(child);
  }
  void StartReady(const std::vector<std::string>& flags = {}) {
    controller_.emplace(Start(flags));
    ASSERT_EQ(controller_->ReadLine(), "READY=1") << Text(log_);
  }
  struct Ended {
    int code;
    std::string said;
  };
  // Runs the command `egeria`, as this user or as another one.
  Ended Run(std::vector<std::string> words, bool stranger = false) {
    std::vector<std::string> command = {EGERIA_PROGRAM};
    if (stranger) command = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", EGERIA_PROGRAM};
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), {"--controller", address()});
    const std::string errors = folder_ / "errors";
    truncate(errors.c_str(), 0);
    std::vector<std::string> environment;
    if (stranger) environment.push_back("EGERIA_TRUSTED_USERS=0," + std::to_string(geteuid()));
    auto child = ChildProcess::Start(command, environment, errors);
    EXPECT_TRUE(child.ok()) << child.status();
    const std::string out = child->ReadAll();
    const int code = child->Wait();
    return {code, out + Text(errors)};
  }
  void Register(int number) {
    SimulatedRank rank(TestChannel(address()), TestRegistration(number), 0);
    ASSERT_TRUE(rank.Register().ok());
  }
  static std::string Text(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  static std::vector<nlohmann::json> Lines(const std::string& path) {
    std::ifstream file(path);
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  std::string address() const { return "unix:" + folder_ / "socket"; }
  std::string audit() const { return folder_ / "state/audit.jsonl"; }

  TempFolder folder_;
  const std::string log_ = folder_ / "log";
  std::optional<ChildProcess> controller_;
};

TEST_F(ControllerAccess, WhatIsDoneByHandIsWrittenDown) {
  StartReady();
  Register(1);
  EXPECT_EQ(Run({"freeze", "job1", "2", "--reason", "a\nreason\x1b[31m"}).code, 0);
  EXPECT_EQ(Run({"freeze", "job1", "1"}).code, 0);
  EXPECT_EQ(Run({"pause", "job1"}).code, 0);
  EXPECT_EQ(Run({"mode", "job1", "observe"}).code, 0);
  EXPECT_NE(Run({"freeze", "job1", "2"}).code, 0) << "in observe mode";
  EXPECT_EQ(Run({"export", "job1"}).code, 0);
  const std::vector<nlohmann::json> lines = Lines(audit());
  ASSERT_EQ(lines.size(), 6u) << Text(audit());
  for (const nlohmann::json& line : lines) {
    EXPECT_EQ(line["who"], "uid:" + std::to_string(geteuid()));
    EXPECT_THAT(std::string(line["where"]), HasSubstr("pid:"));
    EXPECT_EQ(line["job"], TestJobId(1));
  }
  const auto change = [&](size_t i) { return std::pair(lines[i]["before"], lines[i]["after"]); };
  EXPECT_EQ(change(0), std::pair(nlohmann::json(0), nlohmann::json(2)));
  EXPECT_EQ(lines[0]["reason"], "a\nreason\x1b[31m");
  EXPECT_EQ(change(1), std::pair(nlohmann::json(2), nlohmann::json(1)));
  EXPECT_EQ(change(2), std::pair(nlohmann::json(false), nlohmann::json(true)));
  EXPECT_EQ(change(3), std::pair(nlohmann::json("act"), nlohmann::json("observe")));
  EXPECT_THAT(std::string(lines[4]["outcome"]), HasSubstr("[OBSERVE_MODE]"));
  EXPECT_EQ(lines[5]["action"], "export_job");
  EXPECT_THAT(Text(audit()), Not(HasSubstr("\x1b")));
  struct stat info = {};
  ASSERT_EQ(stat(audit().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(ControllerAccess, SighupBeginsAnotherAuditLogAndEndsNothing) {
  StartReady();
  Register(1);
  EXPECT_EQ(Run({"pause", "job1"}).code, 0);
  ASSERT_EQ(rename(audit().c_str(), (audit() + ".1").c_str()), 0);
  controller_->Signal(SIGHUP);
  for (int i = 0; i < 500 && access(audit().c_str(), F_OK) != 0; ++i) usleep(10'000);
  EXPECT_EQ(Run({"resume", "job1"}).code, 0);
  EXPECT_EQ(Lines(audit() + ".1").size(), 1u);
  EXPECT_EQ(Lines(audit()).size(), 1u);
}

TEST_F(ControllerAccess, AnotherUserIsNoOperatorUnlessHeIsNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  StartReady();
  Register(1);
  EXPECT_NE(Run({"list"}, /*stranger=*/true).code, 0);
  EXPECT_NE(Run({"freeze", "job1", "1"}, /*stranger=*/true).code, 0);
  EXPECT_THAT(Run({"list"}).said, HasSubstr("0/0/3")) << "nothing is frozen";
  controller_->Signal(SIGTERM);
  controller_->Wait();
  StartReady({"--admin-operators", "nobody"});
  EXPECT_EQ(Run({"freeze", "job1", "1"}, /*stranger=*/true).code, 0) << Text(log_);
  EXPECT_EQ(Lines(audit()).back()["who"], "uid:65534");
}

TEST_F(ControllerAccess, WorkersAreNotServedAsOperators) {
  StartReady();
  auto admin = v1::Admin::NewStub(TestChannel(address()));
  grpc::ClientContext context;
  v1::ListJobsResponse response;
  const grpc::Status refused = admin->ListJobs(&context, {}, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(refused.error_message(), "[NOT_AN_OPERATOR] workers call here; operators call at " + address() + ".admin");
  EXPECT_EQ(Lines(audit()).back()["action"], "list_jobs");
}

TEST_F(ControllerAccess, FoldersThatOthersCanWriteToAreRefusedOrNamed) {
  ASSERT_EQ(mkdir((folder_ / "state").c_str(), 0700), 0);
  ASSERT_EQ(chmod((folder_ / "state").c_str(), 0777), 0);
  EXPECT_EQ(Start().Wait(), 1);
  EXPECT_THAT(Text(log_), HasSubstr("[UNSAFE_FOLDER] others can write to " + folder_ / "state"));
  ASSERT_EQ(chmod((folder_ / "state").c_str(), 0700), 0);
  ASSERT_EQ(chmod(folder_.path().c_str(), 01777), 0);
  StartReady();
  EXPECT_THAT(Text(log_), HasSubstr("other users can write to " + folder_.path()));
}

TEST_F(ControllerAccess, WhoeverHasTheWorkersSocketHasTheOperators) {
  StartReady();
  ASSERT_EQ(unlink((folder_ / "socket").c_str()), 0);
  auto successor = Start({"--state-dir", folder_ / "other"});
  ASSERT_EQ(successor.ReadLine(), "READY=1") << Text(log_);
  controller_->Signal(SIGTERM);
  EXPECT_EQ(controller_->Wait(), 0);
  Register(7);
  EXPECT_THAT(Run({"list"}).said, HasSubstr("job7"));
}

TEST_F(ControllerAccess, WhatTheNetworkCanReachIsRefusedOrSaid) {
  EXPECT_EQ(Start({"--metrics-listen", "0.0.0.0:0", "--check-config"}).Wait(), 2);
  EXPECT_THAT(Text(log_), HasSubstr("[INSECURE_ADDRESS] other machines could read the metrics"));
  EXPECT_EQ(Start({"--admin-listen", "127.0.0.1:0", "--check-config"}).Wait(), 2);
  EXPECT_THAT(Text(log_), HasSubstr("--admin-operators"));
  StartReady({"--listen", "0.0.0.0:0", "--metrics-listen", "0.0.0.0:0", "--insecure"});
  EXPECT_THAT(Text(log_), AllOf(HasSubstr("everybody on the network can use 0.0.0.0:"),
                                HasSubstr("everybody on the network can read the metrics")));
}

}  // namespace
}  // namespace egeria::testing

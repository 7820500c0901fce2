// The program egeria-controller as its users meet it: exit codes, messages, signals, kill -9.
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/rpc/address.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/local_trainer.h"
#include "tests/cluster/test_cluster.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_folder.h"

namespace egeria::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class ControllerProcess : public ::testing::Test {
 protected:
  // Standard output is the descriptor that says READY=1.
  ChildProcess Start(std::vector<std::string> flags = {}, const std::vector<std::string>& environment = {}) {
    std::vector<std::string> command = {
        EGERIA_CONTROLLER_PROGRAM, "--state-dir", folder_ / "state", "--metrics-listen", "none", "--ready-fd", "1"};
    command.insert(command.end(), flags.begin(), flags.end());
    auto child = ChildProcess::Start(command, environment, log());
    EXPECT_TRUE(child.ok()) << child.status();
    return *std::move(child);
  }
  ChildProcess StartReady(std::vector<std::string> flags = {}) {
    ChildProcess child = Start(std::move(flags));
    EXPECT_EQ(child.ReadLine(), "READY=1") << FileText(log());
    return child;
  }
  // Runs one that is expected to end by itself.
  int Run(std::vector<std::string> flags, const std::vector<std::string>& environment = {}) {
    ChildProcess child = Start(std::move(flags), environment);
    return child.Wait();
  }
  std::unique_ptr<SimulatedRank> Rank(const v1::RegisterJobRequest& job, int rank) {
    return std::make_unique<SimulatedRank>(TestChannel("unix:" + folder_ / "state/controller.sock"), job, rank);
  }
  std::string log() const { return folder_ / "log"; }

  TempFolder folder_;
};

TEST_F(ControllerProcess, EndsCleanlyOnSigtermAndSigint) {
  for (int signal : {SIGTERM, SIGINT}) {
    ChildProcess child = StartReady();
    child.Signal(signal);
    EXPECT_EQ(child.Wait(), 0);
    EXPECT_THAT(FileText(log()), HasSubstr("stopped"));
    EXPECT_NE(access((folder_ / "state/controller.sock").c_str(), F_OK), 0) << "the socket is taken away";
  }
}

TEST_F(ControllerProcess, EndsInTimeWithClientsThatAreStuck) {
  ChildProcess child = StartReady();
  auto stuck = Rank(TestRegistration(1), 0);
  stuck->Connect();
  v1::WorkerMessage beat;
  beat.mutable_heartbeat();
  for (int i = 0; i < 5'000; ++i) ASSERT_TRUE(stuck->Send(beat));  // and never reads an answer
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(), 0);  // waits a minute at most, then kills
}

TEST_F(ControllerProcess, ASecondOneOnTheSameStateSaysSo) {
  ChildProcess first = StartReady();
  EXPECT_EQ(Run({}), 1);
  EXPECT_THAT(FileText(log()), HasSubstr("[STATE_DIR_IN_USE]"));
}

TEST_F(ControllerProcess, ASecondOneOnTheSameSocketSaysSoAndLeavesItAlone) {
  ChildProcess first = StartReady();
  EXPECT_EQ(Run({"--state-dir", folder_ / "other", "--listen", "unix:" + folder_ / "state/controller.sock"}), 1);
  EXPECT_THAT(FileText(log()), HasSubstr("[ADDRESS_IN_USE]"));
  EXPECT_TRUE(Rank(TestRegistration(1), 0)->Register().ok()) << "the first one still answers";
}

TEST_F(ControllerProcess, APortInUseIsAClearError) {
  ChildProcess first = StartReady({"--listen", "127.0.0.1:0"});
  const std::string said = FileText(log());
  const size_t at = said.find("listening on ") + std::strlen("listening on ");
  const std::string address = said.substr(at, said.find('\n', at) - at);
  ASSERT_THAT(address, StartsWith("127.0.0.1:"));
  EXPECT_EQ(Run({"--state-dir", folder_ / "other", "--listen", address}), 1);
  EXPECT_THAT(FileText(log()), AllOf(HasSubstr("[CANNOT_LISTEN]"), HasSubstr(address)));
}

TEST_F(ControllerProcess, ReplacesASocketThatAKilledOneHasLeft) {
  {
    ChildProcess killed = StartReady();
    killed.Signal(SIGKILL);
    killed.Wait();
  }
  ASSERT_EQ(access((folder_ / "state/controller.sock").c_str(), F_OK), 0);
  ChildProcess next = StartReady();
  EXPECT_TRUE(Rank(TestRegistration(1), 0)->Register().ok());
}

TEST_F(ControllerProcess, ReplacesNoFileThatIsNoSocket) {
  std::ofstream(folder_ / "precious") << "data";
  EXPECT_EQ(Run({"--listen", "unix:" + folder_ / "precious"}), 1);
  EXPECT_EQ(FileText(folder_ / "precious"), "data");
  EXPECT_THAT(FileText(log()), HasSubstr("is no socket"));
}

TEST_F(ControllerProcess, ChecksItsConfiguration) {
  EXPECT_EQ(Run({"--check-config"}), 0);
  EXPECT_EQ(Run({"--check-config", "--max-cpu-load", "7"}), 2);
  EXPECT_THAT(FileText(log()), HasSubstr("--max-cpu-load"));
  EXPECT_EQ(Run({"--check-config"}, {"EGERIA_CONTROLLER_LISTN=x"}), 2);
  EXPECT_THAT(FileText(log()), HasSubstr("EGERIA_CONTROLLER_LISTEN"));
  EXPECT_EQ(Run({"--listen", "0.0.0.0:0"}), 2);
  EXPECT_THAT(FileText(log()), HasSubstr("[INSECURE_ADDRESS]"));
}

TEST_F(ControllerProcess, NotifiesAServiceManager) {
  const std::string path = folder_ / "notify";
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, path.c_str(), sizeof(name.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  const timeval patience = {30, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  auto receive = [fd] {
    char buffer[64];
    const ssize_t count = recv(fd, buffer, sizeof(buffer), 0);
    return std::string(buffer, static_cast<size_t>(std::max<ssize_t>(0, count)));
  };
  ChildProcess child = Start({}, {"NOTIFY_SOCKET=" + path});
  EXPECT_EQ(receive(), "READY=1");
  child.Signal(SIGTERM);
  EXPECT_EQ(receive(), "STOPPING=1");
  EXPECT_EQ(child.Wait(), 0);
  close(fd);
}

// The real reference engine, a job whose module is a ReLU, and kill -9 in the middle.
TEST_F(ControllerProcess, GoesOnFromItsJournalAfterKillNine) {
  auto job = TestRegistration(1);
  auto plan_of = [](SimulatedRank& rank) {
    return rank.BeatUntil([](const v1::Directive& d) { return d.plans_size() > 0; }).plans(0);
  };
  v1::Plan before;
  auto rank = Rank(job, 0);
  {
    ChildProcess killed = StartReady();
    rank->Connect();
    auto admin = v1::Admin::NewStub(TestChannel("unix:" + folder_ / "state/controller.sock.admin"));
    grpc::ClientContext context;
    v1::SetFrozenPrefixRequest request;
    v1::SetFrozenPrefixResponse response;
    request.set_job_id(job.job_id());
    request.set_frozen_prefix(1);
    ASSERT_TRUE(admin->SetFrozenPrefix(&context, request, &response).ok());
    before = plan_of(*rank);
    killed.Signal(SIGKILL);
    killed.Wait();
    EXPECT_EQ(rank->Status().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  ChildProcess again = StartReady();
  rank->Connect();
  const v1::Plan after = plan_of(*rank);
  EXPECT_EQ(after.SerializeAsString(), before.SerializeAsString());
}

// The graph of y = relu(x), after a product of matrices of integers, which takes minutes.
v1::ModuleGraph EndlessGraph() {
  v1::ModuleGraph graph = ReluGraph();
  const v1::Node relu = graph.nodes(0);
  graph.clear_nodes();
  v1::Node* const full = graph.add_nodes();
  full->set_op("aten::full");
  auto* const size = full->add_args()->mutable_list();
  for (int i = 0; i < 2; ++i) size->add_items()->set_int_value(2500);
  full->add_args()->set_int_value(3);
  full->add_outputs("whole");
  v1::Node* const product = graph.add_nodes();
  product->set_op("aten::mm");
  for (int i = 0; i < 2; ++i) product->add_args()->set_value("whole");
  product->add_outputs("product");
  *graph.add_nodes() = relu;
  return graph;
}

// Processor time of the child of `parent`, in seconds; 0 where there is none.
double SecondsOfChild(pid_t parent) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(parent) + "/task")) {
    std::ifstream children(task.path() / "children");
    pid_t child = 0;
    clockid_t clock;
    timespec now{};
    if (children >> child && clock_getcpuclockid(child, &clock) == 0 && clock_gettime(clock, &now) == 0) {
      return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
    }
  }
  return 0;
}

TEST_F(ControllerProcess, EndsInTimeDuringAGraphWithoutEnd) {
  ChildProcess child = StartReady({"--max-cpu-load", "1", "--reference-deadline", "1h"});
  auto job = TestRegistration(1);
  *job.mutable_modules(0)->mutable_graph() = EndlessGraph();
  auto rank = Rank(job, 0);
  rank->Connect();
  for (int step = 10; !rank->Serve(rank->BeatAt(step), step); step += 10) {
  }
  for (int i = 0; i < 3'000 && SecondsOfChild(child.pid()) < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ASSERT_GE(SecondsOfChild(child.pid()), 2) << FileText(log());
  const auto start = std::chrono::steady_clock::now();
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// The worker's own readings, real agents, and kill -9 in the middle.
TEST_F(ControllerProcess, KeepsWhatLocalReferencesDecidedAfterKillNine) {
  const std::string address = "unix:" + folder_ / "state/controller.sock";
  const auto prefix = [&] {
    grpc::ClientContext context;
    v1::ListJobsResponse response;
    auto admin = v1::Admin::NewStub(TestChannel(address + ".admin"));
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    EXPECT_TRUE(admin->ListJobs(&context, {}, &response).ok());
    return response.jobs_size() == 1 ? response.jobs(0).decided_prefix() : -1;
  };
  std::unique_ptr<LocalTrainer> trainer;
  {
    ChildProcess killed = StartReady();
    trainer = std::make_unique<LocalTrainer>(address, LocalJob(1));
    ASSERT_TRUE(trainer->TrainUntilPlan(1));
    killed.Signal(SIGKILL);
    killed.Wait();
  }
  ChildProcess again = StartReady();
  EXPECT_GE(prefix(), 1) << "from the journal, whatever the workers say";
  EXPECT_EQ(trainer->frozen_prefix(), 1);
  ASSERT_TRUE(trainer->TrainUntilPlan(3)) << "and the next modules follow";
  EXPECT_EQ(trainer->frozen_prefix(), 3);
}

}  // namespace
}  // namespace egeria::testing

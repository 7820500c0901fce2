// CPU and memory of egeria-controller under many jobs of one rank, each with a heartbeat a second.
// usage: controller_load_benchmark EGERIA_CONTROLLER_PROGRAM [JOBS [SECONDS [RECORD]]]; RECORD: docs/results/measured.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "grpcpp/grpcpp.h"
#include "tests/benchmarks/recording.h"
#include "tests/cluster/test_cluster.h"
#include "tests/support/child_process.h"
#include "tests/support/job_fixtures.h"

namespace egeria::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct Usage {
  double cpu_seconds = 0;
  double resident_mib = 0;
};

Usage UsageOf(pid_t pid) {
  std::string stat;
  std::getline(std::ifstream(absl::StrCat("/proc/", pid, "/stat")), stat);
  // Fields 14 and 15 are user and system ticks; the name before them may hold blanks but ends with ")".
  const std::vector<std::string> fields = absl::StrSplit(stat.substr(stat.rfind(')') + 2), ' ');
  double user = 0, system = 0, pages = 0;
  EGERIA_CHECK(absl::SimpleAtod(fields[11], &user) && absl::SimpleAtod(fields[12], &system) &&
               absl::SimpleAtod(fields[21], &pages));
  return {(user + system) / sysconf(_SC_CLK_TCK), pages * sysconf(_SC_PAGESIZE) / (1 << 20)};
}

int Run(const std::string& program, int jobs, int seconds, const std::string& record) {
  TempFolder folder;
  const std::string address = absl::StrCat("unix:", folder.path(), "/socket");
  auto controller = ChildProcess::Start({program, "--listen", address, "--state-dir", folder.path() + "/state",
                                         "--metrics-listen", "none", "--ready-fd", "1", "--log-level", "error"});
  EGERIA_CHECK(controller.ok() && controller->ReadLine() == "READY=1");
  const Usage idle = UsageOf(controller->pid());

  // A few channels, as a connection has its limits; streams of one rank each.
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < 16; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt("egeria.benchmark_channel", i);
    channels.push_back(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }
  std::vector<std::unique_ptr<SimulatedRank>> ranks;
  const auto start = Clock::now();
  for (int job = 0; job < jobs; ++job) {
    v1::RegisterJobRequest registration = TestRegistration(job);
    registration.set_world_size(1);
    ranks.push_back(std::make_unique<SimulatedRank>(channels[job % channels.size()], registration, 0));
    EGERIA_CHECK(ranks.back()->Register().ok() && ranks.back()->Open());
  }
  const Usage loaded = UsageOf(controller->pid());
  const double registering = std::chrono::duration<double>(Clock::now() - start).count();

  auto next = Clock::now();
  double slowest = 0;
  for (int second = 0; second < seconds; ++second) {
    const auto round = Clock::now();
    for (auto& rank : ranks) rank->BeatAt(10 * (second + 1));
    slowest = std::max(slowest, std::chrono::duration<double>(Clock::now() - round).count());
    next += std::chrono::seconds(1);
    std::this_thread::sleep_until(next);
  }
  const Usage end = UsageOf(controller->pid());
  std::printf("%d jobs, one heartbeat a second each, for %d s\n", jobs, seconds);
  std::printf("registering them took          %8.2f s, %.2f ms of controller CPU a job\n", registering,
              1e3 * (loaded.cpu_seconds - idle.cpu_seconds) / jobs);
  std::printf("controller CPU                 %8.3f of one core\n", (end.cpu_seconds - loaded.cpu_seconds) / seconds);
  std::printf("resident memory                %8.1f MiB idle, %.1f MiB with the jobs, %.1f MiB at the end\n",
              idle.resident_mib, loaded.resident_mib, end.resident_mib);
  std::printf("slowest round of %4d answers  %8.3f s\n", jobs, slowest);
  Recording recording("build/dev/benchmarks/controller_load_benchmark");
  const std::string load = absl::StrCat("controller with ", jobs, " jobs that send a heartbeat a second each");
  recording.Add(load, {(end.cpu_seconds - loaded.cpu_seconds) / seconds}, "cores");
  recording.Add("its memory", {end.resident_mib}, "MiB");
  recording.Write(record, /*rounds=*/1);
  return 0;
}

}  // namespace
}  // namespace egeria::testing

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s EGERIA_CONTROLLER_PROGRAM [JOBS [SECONDS [RECORD]]]\n", argv[0]);
    return 2;
  }
  return egeria::testing::Run(argv[1], argc > 2 ? std::atoi(argv[2]) : 1000, argc > 3 ? std::atoi(argv[3]) : 30,
                              argc > 4 ? argv[4] : "");
}

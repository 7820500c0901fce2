#include "launcher/launcher.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/host_name.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/program_path.h"
#include "common/base/status.h"
#include "launcher/connect.h"
#include "launcher/controller_process.h"
#include "launcher/node_cache.h"
#include "launcher/programs.h"
#include "launcher/signals.h"
#include "launcher/subprocess.h"
#include "launcher/temp_folder.h"

namespace egeria::run {
namespace {

constexpr int kCannotStart = 127;

// The controller of the job: its address, or "none", and its process if it is ours.
struct Controller {
  std::string address;
  std::unique_ptr<ControllerProcess> process;
};

Controller StartController(const Arguments& arguments, const Signals& signals) {
  if (SpansNodes(arguments.torchrun)) {
    LogWarning(
        "A job on several nodes needs one controller for all: start egeria-controller, and give its address "
        "to every egeria-run in EGERIA_CONTROLLER. Training goes on without one.");
    return {"none", nullptr};
  }
  auto process = ControllerProcess::Start(arguments, signals);
  if (!process.ok()) {
    LogWarning("No controller: ", process.status().message(), ". Training goes on without one.");
    return {"none", nullptr};
  }
  const absl::Status ready = (*process)->process().WaitUntilReady(signals, arguments.ready_timeout);
  if (absl::IsDeadlineExceeded(ready)) {
    LogWarning("The controller is not ready after ", absl::FormatDuration(arguments.ready_timeout),
               ". Training starts, and finds it should it come later.");
  } else if (absl::IsUnavailable(ready)) {
    LogWarning("The controller could not start: ", ready.message(), ". Training goes on without it.");
    return {"none", nullptr};
  }
  return {(*process)->address(), *std::move(process)};
}

Controller FindOrStartController(const Arguments& arguments, const Signals& signals) {
  if (arguments.controller.empty()) return StartController(arguments, signals);
  if (arguments.controller != "none") {
    const absl::Status status = CheckThatSomebodyListens(arguments.controller);
    if (!status.ok()) {
      LogWarning("The controller at ", arguments.controller, " does not answer (", status.message(),
                 "). Training starts, and finds it should it come later.");
    }
  }
  return {arguments.controller, nullptr};
}

std::map<std::string, std::string> Environment(const Arguments& arguments, const std::string& controller,
                                               const std::string& cache) {
  std::map<std::string, std::string> environment;
  environment["EGERIA_CONTROLLER"] = controller;
  environment["EGERIA_CACHE"] = cache;
  environment["EGERIA_JOB_ID"] = arguments.job_id.empty() ? JobId::Random().text() : arguments.job_id;
  if (const char* secret = std::getenv("EGERIA_JOB_SECRET"); secret == nullptr || secret[0] == '\0') {
    environment["EGERIA_JOB_SECRET"] = RandomToken();
  }
  if (!arguments.name.empty()) environment["EGERIA_TRAINING_JOB"] = arguments.name;
  if (!arguments.budget.empty()) environment["EGERIA_BUDGET"] = arguments.budget;
  environment["EGERIA_NODE"] = HostName();
  if (RunsProgram(arguments.torchrun)) {  // egeria-train beside us is found by its bare name
    const char* path = std::getenv("PATH");
    environment["PATH"] = path == nullptr ? OwnFolder() : absl::StrCat(OwnFolder(), ":", path);
  }
  return environment;
}

void TendDaemons(ControllerProcess* controller, NodeCache* cache, const Signals& signals) {
  if (controller != nullptr && controller->process().HasJustDied()) {
    LogWarning("The controller has ended. Training goes on; what is frozen stays frozen.");
  }
  if (cache != nullptr) cache->Tend(signals);
}

// Passes signals on to torchrun until it ends; returns its exit code.
int Wait(Subprocess* torchrun, ControllerProcess* controller, NodeCache* cache, Signals* signals) {
  for (;;) {
    if (const std::optional<int> code = torchrun->Poll()) return *code;
    TendDaemons(controller, cache, *signals);
    const std::optional<Signals::Signal> signal = signals->Next(absl::Seconds(1));
    if (!signal.has_value() || signal->number == SIGCHLD || signal->to_group) continue;
    torchrun->Signal(signal->number);
  }
}

// A signal to end that came while the daemons were starting.
std::optional<int> SignalSoFar(Signals* signals) {
  while (const std::optional<Signals::Signal> signal = signals->Next(absl::ZeroDuration())) {
    if (signal->number != SIGCHLD) return signal->number;
  }
  return std::nullopt;
}

int RunTorchrun(const std::string& program, const Arguments& arguments, const Controller& controller, NodeCache* cache,
                Signals* signals) {
  if (const std::optional<int> signal = SignalSoFar(signals)) return 128 + *signal;
  Subprocess::Options options;
  options.command = {program};
  options.command.insert(options.command.end(), arguments.torchrun.begin(), arguments.torchrun.end());
  options.environment = Environment(arguments, controller.address, cache->address());
  options.signal_mask = signals->original_mask();
  absl::StatusOr<Subprocess> torchrun = Subprocess::Start(options);
  if (!torchrun.ok()) {
    LogError(std::string(torchrun.status().message()));
    return kCannotStart;
  }
  return Wait(&*torchrun, controller.process.get(), cache, signals);
}

}  // namespace

int Launch(const Arguments& arguments) {
  const absl::StatusOr<std::string> program = FindTorchrun();
  if (!program.ok()) {
    LogError(std::string(program.status().message()));
    return kCannotStart;
  }
  const std::vector<std::string> misplaced = MisplacedOptions(arguments.torchrun);
  if (!misplaced.empty()) {
    LogWarning("egeria-run's own options come before torchrun's; passed on as they are: ",
               absl::StrJoin(misplaced, ", "));
  }
  Signals signals;
  const Controller controller = FindOrStartController(arguments, signals);
  NodeCache cache(arguments, signals);
  const int code = RunTorchrun(*program, arguments, controller, &cache, &signals);
  cache.Leave(&signals);
  if (controller.process != nullptr) controller.process->process().End(&signals);
  return code;
}

int Serve(const Arguments& arguments) {
  const pid_t parent = getppid();
  signal(SIGPIPE, SIG_IGN);  // whoever reads what this process prints may go first
  Signals signals;
  const Controller controller = FindOrStartController(arguments, signals);
  const bool failed = arguments.controller.empty() && controller.process == nullptr;
  // A controller of ours keeps its socket in the folder, and removes it. Nobody else needs it.
  if (controller.process == nullptr) TempFolder::Take(arguments.beside).IgnoreError();
  std::optional<NodeCache> cache;
  // A child that the parent forked may hold the other end of standard input, so that the parent itself counts, too.
  while (!failed && getppid() == parent) {
    const Signals::Event event = signals.WaitForInput(STDIN_FILENO, absl::Seconds(1));
    if (event == Signals::Event::kSignal) break;
    TendDaemons(controller.process.get(), cache.has_value() ? &*cache : nullptr, signals);
    if (event == Signals::Event::kTimeout) continue;
    char line[64];
    if (read(STDIN_FILENO, line, sizeof(line)) <= 0) break;
    if (!cache.has_value()) cache.emplace(arguments, signals);
  }
  if (controller.process != nullptr) controller.process->process().End(&signals);
  if (cache.has_value()) cache->Leave(&signals);
  return failed ? 1 : 0;
}

}  // namespace egeria::run

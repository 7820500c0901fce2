#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "jobs/backend.h"
#include "jobs/program.h"
#include "jobs/shell_words.h"
#include "jobs/submission.h"
#include "jobs/training_script.h"

namespace egeria::jobs {
namespace {

std::string ControllerWords(const JobFile& job) {
  if (job.egeria.controller == "own") return "--egeria-state-dir \"$output/controller\" ";
  return absl::StrCat("--egeria-controller ", Quote(job.egeria.controller), " ");
}

// coreutils' timeout, which gives the signal before the limit, and ends the training at the limit.
std::string TimeoutWords(const JobFile& job) {
  const absl::Duration limit = job.resources.time_limit;
  if (limit == absl::ZeroDuration()) return "";
  const bool signals = SignalsBeforeLimit(job);
  const int64_t before = signals ? absl::ToInt64Seconds(job.checkpoints.signal_before) : 0;
  return absl::StrCat("timeout --foreground --signal=", signals ? job.checkpoints.signal : "TERM",
                      " --kill-after=", signals ? before : 10, " ", absl::ToInt64Seconds(limit) - before, " ");
}

// A job runs as a bash of its own session. Its id is the process id and when that process started.
class Local : public Backend {
 public:
  std::string name() const override { return "local"; }

  absl::StatusOr<std::string> Compile(const JobFile& job) const override {
    return absl::StrCat(
        "#!/usr/bin/env bash\n"
        "# The job ",
        job.name, " on this machine, as `egeria compile --to local` has written it: all ", job.ranks(),
        " ranks run here.\n"
        "set -euo pipefail\n\n",
        ScriptBeginning(job),
        "\n# How the job ends is kept for `egeria status`.\n"
        "rm -f \"$output/exit_code\"\n"
        "trap 'echo $? >\"$output/exit_code\"' EXIT\n"
        "trap 'exit 143' TERM INT HUP\n\n"
        "train() (\n"
        "cd ",
        Quote(job.application.folder), "\n", StageCommands(job), TimeoutWords(job), "egeria-run ", ControllerWords(job),
        CacheWords(job), "\\\n  --nproc-per-node ", job.ranks(), " ", SignalWords(job), "\\\n  ", ApplicationWords(job),
        "\n)\ntrain\n");
  }

  absl::StatusOr<std::string> Submit(const Submission& submission) const override {
    EGERIA_ASSIGN_OR_RETURN(const pid_t pid, StartDetached({"bash", submission.script}, LogFile(submission.output)));
    return absl::StrCat(pid, ":", StartTimeOf(pid));
  }

  absl::StatusOr<JobStatus> Status(const Submission& submission) const override {
    if (Process(submission) > 0) return JobStatus{false, "running"};
    if (const auto ended = StatusByExitCode(submission.output)) return *ended;
    return JobStatus{true, "ended without an exit code: it was killed, or the machine went down"};
  }

  absl::Status Logs(const Submission& submission, bool follow, std::ostream& out) const override {
    return CopyLog(submission.output, [&] { return follow && Process(submission) > 0; }, out);
  }

  absl::Status Cancel(const Submission& submission) const override {
    // The whole session's group: bash, egeria-run and torchrun, which ends the ranks.
    if (const pid_t pid = Process(submission); pid > 0) kill(-pid, SIGTERM);
    return absl::OkStatus();
  }

 private:
  // The process of a job that runs, else 0.
  static pid_t Process(const Submission& submission) {
    const std::vector<std::string> parts = absl::StrSplit(submission.id, ':');
    pid_t pid = 0;
    unsigned long long start = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &pid) || !absl::SimpleAtoi(parts[1], &start)) return 0;
    return pid > 0 && start > 0 && StartTimeOf(pid) == start ? pid : 0;
  }
};

}  // namespace

const Backend& LocalBackend() {
  static const Local backend;
  return backend;
}

}  // namespace egeria::jobs

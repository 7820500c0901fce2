#include <algorithm>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "jobs/backend.h"
#include "jobs/program.h"
#include "jobs/shell_words.h"
#include "jobs/submission.h"
#include "jobs/training_script.h"

namespace egeria::jobs {
namespace {

// Slurm's names for the states that a job does not leave.
constexpr absl::string_view kEndStates[] = {"COMPLETED", "FAILED",    "CANCELLED", "TIMEOUT",      "NODE_FAIL",
                                            "PREEMPTED", "BOOT_FAIL", "DEADLINE",  "OUT_OF_MEMORY"};

bool HasOwnStep(const JobFile& job) { return job.egeria.controller == "own" && job.resources.nodes > 1; }
// The lines that sbatch reads. None of them holds a text of the user's that sbatch could take apart.
std::string Directives(const JobFile& job) {
  const auto& resources = job.resources;
  std::string lines;
  const auto add = [&lines](const auto&... words) { absl::StrAppend(&lines, "#SBATCH ", words..., "\n"); };
  add("--job-name=", job.name);
  add("--nodes=", resources.nodes);
  add("--ntasks-per-node=1");
  add("--cpus-per-task=", resources.ranks_per_node * resources.cpus_per_rank);
  if (resources.gpus_per_node > 0) add("--gpus-per-node=", resources.gpus_per_node);
  if (resources.memory_per_node.value > 0) add("--mem=", (resources.memory_per_node.value + 1023) / 1024, "K");
  if (resources.time_limit > absl::ZeroDuration()) {
    const int64_t seconds = absl::ToInt64Seconds(resources.time_limit);
    add("--time=",
        absl::StrFormat("%d-%02d:%02d:%02d", seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60));
  }
  if (SignalsBeforeLimit(job)) add("--signal=B:USR1@", absl::ToInt64Seconds(job.checkpoints.signal_before));
  add("--requeue");
  add("--output=/dev/null");  // the script writes to the output folder, whatever its name is
  if (!job.slurm.partition.empty()) add("--partition=", job.slurm.partition);
  if (!job.slurm.account.empty()) add("--account=", job.slurm.account);
  for (const std::string& option : job.slurm.options) add(option);
  return lines;
}

constexpr char kControllerStep[] = R"sh(
# One controller serves all nodes. It and the ranks know each other by a certificate that is made for this run.
tls=$output/tls
(umask 077; mkdir -p "$tls"; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 \
  -subj "/CN=$first" -addext "subjectAltName=DNS:$first" -keyout "$tls/key.pem" -out "$tls/certificate.pem" \
  2>"$tls/log")
export EGERIA_TLS_CA=$tls/certificate.pem EGERIA_TLS_CERT=$tls/certificate.pem EGERIA_TLS_KEY=$tls/key.pem
export controller=$first:$((port + 1))
srun --overlap --nodes=1 --ntasks=1 --cpus-per-task=1 --nodelist="$first" egeria-controller \
  --listen "$controller" --admin-listen none --metrics-listen none --log-level warning \
  --state-dir "$output/controller" \
  --tls-ca "$EGERIA_TLS_CA" --tls-certificate "$EGERIA_TLS_CERT" --tls-key "$EGERIA_TLS_KEY" &
controller_step=$!
for _ in $(seq 60); do  # half a minute at most; the training goes on without it
  if (: <"/dev/tcp/$first/$((port + 1))") 2>/dev/null; then break; fi
  sleep 0.5
done
)sh";

// Slurm may give a signal to all processes of a step, or to the first of each task alone. So the step gets this one,
// which all but the first process ignore, and that one signals egeria-run.
std::string CarrierSignal(const JobFile& job) { return job.checkpoints.signal == "USR2" ? "USR1" : "USR2"; }

std::string ControllerWords(const JobFile& job) {
  if (HasOwnStep(job)) return "--egeria-controller \"$controller\" ";
  if (job.egeria.controller == "own") return "--egeria-state-dir \"$output/controller\" ";
  return absl::StrCat("--egeria-controller ", Quote(job.egeria.controller), " ");
}

constexpr char kWaitFor[] = R"sh(
# Gives the exit code of a process; a signal to this script may interrupt the waiting.
wait_for() {
  local code=0
  wait "$1" || code=$?
  while kill -0 "$1" 2>/dev/null; do wait "$1" || true; done
  [ "$code" -le 128 ] || { code=0; wait "$1" || code=$?; }
  return "$code"
}
)sh";

// Each node runs this function once. egeria-run finds or starts the node's cache.
std::string NodeFunction(const JobFile& job) {
  const std::string carrier = CarrierSignal(job);
  const std::string& signal = job.checkpoints.signal;
  std::string traps = "trap 'kill -TERM \"$training\"' TERM\n";
  std::string ignored;
  if (SignalsBeforeLimit(job)) {
    absl::StrAppend(&traps, "trap 'kill -", signal, " \"$training\"' ", carrier, "\n");
    ignored = absl::StrCat("trap '' ", carrier, "; ");
  }
  return absl::StrCat(
      "\n# Every node runs this once. egeria-run uses the node's cache, and starts it where none runs.\n"
      "train_on_node() {\nset -euo pipefail\ncd ",
      Quote(job.application.folder), "\n", StageCommands(job), "(", ignored, "exec egeria-run ", ControllerWords(job),
      CacheWords(job), "\\\n  --nnodes ", job.resources.nodes, " --nproc-per-node ", job.resources.ranks_per_node,
      " --rdzv-backend c10d --rdzv-endpoint \"$first:$port\" \\\n  --rdzv-id "
      "\"$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}\" ",
      SignalWords(job), "\\\n  ", ApplicationWords(job), ") &\ntraining=$!\n", traps, "wait_for \"$training\"\n}\n");
}

constexpr char kStart[] = R"sh(
# A node that ends first leaves the others the time to write the checkpoint.
srun --overlap --kill-on-bad-exit=0 --wait=600 --ntasks-per-node=1 \
  bash -c "$(declare -f wait_for train_on_node); train_on_node" &
training=$!
)sh";

constexpr char kEndController[] = R"sh(
# The journal belongs to one controller: this one ends before the job may start again.
scancel --signal=TERM "$SLURM_JOB_ID.0" 2>/dev/null || true
wait_for "$controller_step" || true
)sh";

// For StrFormat: seconds before the limit, the signal to the ranks twice, the one to the step.
constexpr char kTrapLimit[] = R"sh(
# Slurm signals this script %d seconds before the time limit, or up to a minute earlier. The ranks get SIG%s then.
limit_is_near=false
training=
signal_ranks() {
  echo "The time limit is near: the ranks get SIG%s."
  kill -%s "$training" 2>/dev/null || true
}
trap 'limit_is_near=true; [ -z "$training" ] || signal_ranks' USR1
)sh";

// For StrFormat: seconds to wait for the ranks.
constexpr char kRunToTheLimit[] = R"sh(
if $limit_is_near; then signal_ranks; fi  # the signal came before the training was there
status=0
$limit_is_near || wait "$training" || status=$?
if $limit_is_near; then
  deadline=$((SECONDS + %d))
  while kill -0 "$training" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do sleep 1; done
  status=124
  kill -0 "$training" 2>/dev/null || { status=0; wait_for "$training" || status=$?; }
fi
)sh";

// For StrFormat: the number of restarts.
constexpr char kRequeue[] = R"sh(
if $limit_is_near && [ "$status" -ne 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt %d ]; then
  echo "The job goes on from its checkpoint when Slurm starts it again."
  trap - EXIT
  scontrol requeue "$SLURM_JOB_ID"
  sleep 60
fi
)sh";

std::string TrapLimit(const JobFile& job) {
  if (!SignalsBeforeLimit(job)) return "";
  const std::string& signal = job.checkpoints.signal;
  const int64_t before = absl::ToInt64Seconds(job.checkpoints.signal_before);
  return absl::StrFormat(kTrapLimit, before, signal, signal, CarrierSignal(job));
}

std::string RunCommands(const JobFile& job) {
  const std::string end_controller = HasOwnStep(job) ? kEndController : "";
  if (!SignalsBeforeLimit(job)) {
    return absl::StrCat(kStart, "status=0\nwait_for \"$training\" || status=$?\n", end_controller,
                        "exit \"$status\"\n");
  }
  const int64_t before = absl::ToInt64Seconds(job.checkpoints.signal_before);
  const int64_t patience = std::max(before - 10, before * 3 / 4);
  return absl::StrCat(kStart, absl::StrFormat(kRunToTheLimit, patience), end_controller,
                      absl::StrFormat(kRequeue, job.checkpoints.restarts), "exit \"$status\"\n");
}

// A job of Slurm is an sbatch script with a step for the controller and one with a task on each node.
class Slurm : public Backend {
 public:
  std::string name() const override { return "slurm"; }

  absl::StatusOr<std::string> Compile(const JobFile& job) const override {
    if (absl::StartsWith(job.controller_address(), "unix:") && job.resources.nodes > 1) {
      return absl::InvalidArgumentError(
          "egeria.controller: a Unix socket serves one node, and the job has several; give own, none or host:port");
    }
    return absl::StrCat("#!/usr/bin/env bash\n# The job ", job.name,
                        " on Slurm, as `egeria compile --to slurm` has written it for sbatch.\n", Directives(job),
                        "set -euo pipefail\n\n", ScriptBeginning(job), "export output",
                        job.checkpoints.folder.empty() ? "" : " checkpoints", job.data.folders.empty() ? "" : " data",
                        "\n\n# The job's output and its end are kept for `egeria logs` and `egeria status`.\n"
                        "exec >>\"$output/log.txt\" 2>&1\n"
                        "rm -f \"$output/exit_code\"\n"
                        "trap 'echo $? >\"$output/exit_code\"' EXIT\n"
                        "trap 'exit 143' TERM INT HUP\n",
                        TrapLimit(job),
                        "\n# The nodes meet at the first of them. The ports follow from the job's number.\n"
                        "first=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n"
                        "port=$((20000 + SLURM_JOB_ID * 2 % 12000))\n"
                        "export first port\n",
                        HasOwnStep(job) ? kControllerStep : "", kWaitFor, NodeFunction(job), RunCommands(job));
  }

  absl::StatusOr<std::string> Submit(const Submission& submission) const override {
    EGERIA_ASSIGN_OR_RETURN(const std::string id, OutputOf({"sbatch", "--parsable", submission.script}));
    return std::string(absl::StripAsciiWhitespace(id.substr(0, id.find(';'))));  // the cluster's name may follow
  }

  absl::StatusOr<JobStatus> Status(const Submission& submission) const override {
    const absl::StatusOr<std::string> said =
        OutputOf({"squeue", "--noheader", "--states=all", "--format=%T", "--jobs", submission.id});
    // Some minutes after its end Slurm forgets a job. No other failure of squeue says anything of the job.
    if (!said.ok() && !absl::StrContains(said.status().message(), "Invalid job id")) return said.status();
    const std::string state = said.ok() ? std::string(absl::StripAsciiWhitespace(*said)) : "";
    if (state == "CANCELLED") return JobStatus{true, "cancelled"};
    if (const bool ended = state.empty() || absl::c_linear_search(kEndStates, state); !ended) {
      if (state == "PENDING" || state == "SPECIAL_EXIT" || absl::StartsWith(state, "REQUEUE")) {
        return JobStatus{false, "waiting"};
      }
      // A job that Slurm signals, or gives other nodes, runs on.
      const bool runs = state == "SIGNALING" || state == "RESIZING";
      return JobStatus{false, runs ? "running" : absl::AsciiStrToLower(state)};
    }
    if (const auto ended = StatusByExitCode(submission.output)) return *ended;
    if (state == "TIMEOUT") return StatusByExitCode(124);
    const std::string reason = state.empty() ? "it was cancelled, or its time limit killed it" : "Slurm says " + state;
    return JobStatus{true, absl::StrCat("ended without an exit code: ", reason)};
  }

  absl::Status Logs(const Submission& submission, bool follow, std::ostream& out) const override {
    const auto running = [&] {
      if (!follow) return false;
      const absl::StatusOr<JobStatus> status = Status(submission);
      return status.ok() && !status->ended;
    };
    return CopyLog(submission.output, running, out);
  }

  absl::Status Cancel(const Submission& submission) const override {
    return OutputOf({"scancel", submission.id}).status();
  }
};

}  // namespace

const Backend& SlurmBackend() {
  static const Slurm backend;
  return backend;
}

}  // namespace egeria::jobs

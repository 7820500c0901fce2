#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "jobs/backend.h"
#include "jobs/kubernetes_documents.h"
#include "jobs/program.h"
#include "jobs/shell_words.h"
#include "jobs/training_script.h"

namespace egeria::jobs {
namespace {

bool LiesInClaim(const JobFile& job, const std::string& folder) {
  for (const auto& [mount, claim] : job.kubernetes.claims) {
    if (folder == mount || mount == "/" || absl::StartsWith(folder, mount + "/")) return true;
  }
  return false;
}

absl::Status CheckFolder(const JobFile& job, const std::string& key, const std::string& folder) {
  if (folder.empty() || LiesInClaim(job, folder)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", folder,
                                                 " lies in no folder of kubernetes.claims, and would "
                                                 "be lost with its pod; add a claim for it there"));
}

absl::Status CheckForKubernetes(const JobFile& job) {
  if (job.kubernetes.image.empty()) {
    return absl::InvalidArgumentError("kubernetes.image: it is missing; name the container image of the training");
  }
  if (absl::StartsWith(job.controller_address(), "unix:")) {
    return absl::InvalidArgumentError(
        "egeria.controller: a Unix socket is not seen by pods; give own, none or host:port");
  }
  for (const std::string& folder : job.data.folders) {
    EGERIA_RETURN_IF_ERROR(CheckFolder(job, "data.folders", folder));
  }
  EGERIA_RETURN_IF_ERROR(CheckFolder(job, "checkpoints.folder", job.checkpoints.folder));
  return CheckFolder(job, "output.folder", job.output.folder);
}

// Each pod runs this script. A TrainJob tells torchrun about the nodes by variables PET_..., a PyTorchJob by others.
std::string PodScript(const JobFile& job) {
  std::string torchrun;
  if (job.kubernetes.kind == "PyTorchJob") {
    torchrun = absl::StrCat("--nnodes ", job.resources.nodes, " --nproc-per-node ", job.resources.ranks_per_node,
                            " --node-rank \"${RANK:-0}\" \\\n  --master-addr \"${MASTER_ADDR:-127.0.0.1}\" "
                            "--master-port \"${MASTER_PORT:-29500}\" ");
  }
  std::string enter;
  if (LiesInClaim(job, job.application.folder)) enter = absl::StrCat("cd ", Quote(job.application.folder), "\n");
  return absl::StrCat("set -euo pipefail\n", ScriptBeginning(job), "\n", enter, StageCommands(job), "egeria-run ",
                      torchrun, SignalWords(job), "\\\n  ", ApplicationWords(job), "\n");
}

// A job is what `kubectl apply` makes of the compiled documents. Its id is KIND/NAME.
class Kubernetes : public Backend {
 public:
  std::string name() const override { return "kubernetes"; }

  absl::StatusOr<std::string> Compile(const JobFile& job) const override {
    EGERIA_RETURN_IF_ERROR(CheckForKubernetes(job));
    std::string documents =
        absl::StrCat("# The job ", job.name,
                     " on Kubernetes, as `egeria compile --to kubernetes` has written it for kubectl apply.\n");
    if (job.egeria.controller == "own") {
      absl::StrAppend(&documents, "# The controller's journal.\n", ToYaml(ControllerClaim(job)),
                      "---\n# The address of the controller, at which the ranks find it.\n",
                      ToYaml(ControllerService(job)),
                      "---\n# The controller. There is never more than one, since the journal belongs to one. Its "
                      "metrics have no\n# TLS, which --insecure says; its own port has.\n",
                      ToYaml(ControllerDeployment(job)), "---\n");
    }
    const std::string script = PodScript(job);
    const bool is_train_job = job.kubernetes.kind == "TrainJob";
    return absl::StrCat(documents, "# The training. The node's cache is the one of deploy/kubernetes.\n",
                        ToYaml(is_train_job ? TrainJob(job, script) : PyTorchJob(job, script)));
  }

  absl::StatusOr<std::string> Submit(const Submission& submission) const override {
    EGERIA_ASSIGN_OR_RETURN(const std::string said,
                            OutputOf({"kubectl", "apply", "--output=name", "--filename", submission.script}));
    // The training is the last of the documents: trainjob.trainer.kubeflow.org/digits
    const std::string text(absl::StripAsciiWhitespace(said));
    return text.substr(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
  }

  absl::StatusOr<JobStatus> Status(const Submission& submission) const override {
    EGERIA_ASSIGN_OR_RETURN(const std::string json, OutputOf({"kubectl", "get", submission.id, "--namespace",
                                                              submission.space, "--output=json"}));
    const auto object = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
    const auto conditions = object.is_object()
                                ? object.value("/status/conditions"_json_pointer, nlohmann::json::array())
                                : nlohmann::json::array();
    JobStatus status{false, "waiting"};
    for (const auto& condition : conditions) {
      if (!condition.is_object() || condition.value("status", "") != "True") continue;
      const std::string type = condition.value("type", "");
      if (type == "Running") status.words = "running";
      if (type == "Suspended") status.words = "suspended";
      if (type == "Complete" || type == "Succeeded") return JobStatus{true, "finished"};
      if (type == "Failed")
        return JobStatus{true, absl::StrCat("failed: ", condition.value("message", "see the logs"))};
    }
    return status;
  }

  absl::Status Logs(const Submission& submission, bool follow, std::ostream& out) const override {
    std::vector<std::string> command = {"kubectl",          "logs",       "--namespace",
                                        submission.space,   "--selector", Selector(submission),
                                        "--all-containers", "--prefix",   "--tail=-1"};
    if (follow) {
      command.push_back("--follow");
      return Become(command);
    }
    EGERIA_ASSIGN_OR_RETURN(const std::string text, OutputOf(command));
    out << text;
    return absl::OkStatus();
  }

  absl::Status Cancel(const Submission& submission) const override {
    return OutputOf({"kubectl", "delete", "--ignore-not-found", "--wait=false", "--filename", submission.script})
        .status();
  }

 private:
  // The label that the operator gives to the pods of a training.
  static std::string Selector(const Submission& submission) {
    if (absl::StartsWith(submission.id, "pytorchjob")) return "training.kubeflow.org/job-name=" + submission.name;
    return "jobset.sigs.k8s.io/jobset-name=" + submission.name;
  }
};

}  // namespace

const Backend& KubernetesBackend() {
  static const Kubernetes backend;
  return backend;
}

}  // namespace egeria::jobs

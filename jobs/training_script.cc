#include "jobs/training_script.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/values.h"
#include "jobs/shell_words.h"
#include "nlohmann/json.hpp"

namespace egeria::jobs {
namespace {

// The policy's constants as a JSON object; numbers, true and false stay what they are.
std::string OptionsAsJson(const TextMap& options) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, text] : options) {
    const auto value = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    const bool is_text = value.is_discarded();
    if (is_text) object[name] = text;
    else object[name] = value;
  }
  return object.dump();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> TrainingVariables(const JobFile& job) {
  TextMap variables = {{"EGERIA_TRAINING_JOB", job.name},
                       {"OMP_NUM_THREADS", absl::StrCat(job.resources.cpus_per_rank)}};
  if (!job.egeria.policy.empty()) variables["EGERIA_POLICY"] = job.egeria.policy;
  if (!job.egeria.options.empty()) variables["EGERIA_POLICY_OPTIONS"] = OptionsAsJson(job.egeria.options);
  if (job.egeria.budget.value > 0) variables["EGERIA_BUDGET"] = config::Format(job.egeria.budget)[0];
  if (job.egeria.observe) variables.emplace("EGERIA_OBSERVE", "1");
  if (job.egeria.cache_quota.value > 0) variables["EGERIA_CACHE_QUOTA"] = config::Format(job.egeria.cache_quota)[0];
  if (SignalsBeforeLimit(job)) {
    // torchrun gives the ranks so many seconds after the signal; it needs a few itself.
    const int64_t before = absl::ToInt64Seconds(job.checkpoints.signal_before);
    variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = absl::StrCat(std::max(before - 20, before / 2));
  }
  for (const auto& [name, value] : job.application.environment) variables[name] = value;
  return {variables.begin(), variables.end()};
}

bool SignalsBeforeLimit(const JobFile& job) {
  return job.checkpoints.signal != "none" && job.resources.time_limit > absl::ZeroDuration();
}

std::string ScriptBeginning(const JobFile& job) {
  std::string script = absl::StrCat("output=", Quote(job.output.folder), "\n");
  std::string made = "\"$output\"";
  if (!job.checkpoints.folder.empty()) {
    absl::StrAppend(&script, "checkpoints=", Quote(job.checkpoints.folder), "\n");
    made += " \"$checkpoints\"";
  }
  if (!job.data.folders.empty()) absl::StrAppend(&script, "data=", Quote(job.data.folders[0]), "\n");
  absl::StrAppend(&script, "mkdir -p ", made, "\n",
                  job.egeria.controller == "own" ? "(umask 077; mkdir -p \"$output/controller\")\n\n" : "\n",
                  "# A controller knows the job again by its id and its secret when it goes on after a restart.\n"
                  "[ -s \"$output/job.id\" ] || cat /proc/sys/kernel/random/uuid >\"$output/job.id\"\n"
                  "[ -s \"$output/job.secret\" ] ||\n"
                  "  (umask 077; od -An -N16 -tx1 /dev/urandom | tr -d ' \\n' >\"$output/job.secret\")\n"
                  "EGERIA_JOB_ID=$(cat \"$output/job.id\")\n"
                  "EGERIA_JOB_SECRET=$(cat \"$output/job.secret\")\n"
                  "export EGERIA_JOB_ID EGERIA_JOB_SECRET\n\n"
                  "# The training and Egeria read these variables.\n");
  for (const auto& [name, value] : TrainingVariables(job)) {
    absl::StrAppend(&script, "export ", name, "=", Quote(value), "\n");
  }
  if (!job.application.path.empty()) {
    absl::StrAppend(&script, "export PATH=", Quote(absl::StrJoin(job.application.path, ":")), ":\"$PATH\"\n");
  }
  return script;
}

std::string CacheWords(const JobFile& job) {
  if (job.egeria.cache == "default") return "";
  return absl::StrCat("--egeria-cache ", Quote(job.egeria.cache), " ");
}

std::string SignalWords(const JobFile& job) {
  const std::string& signal = job.checkpoints.signal;
  if (signal == "none" || signal == "TERM") return "";  // torchrun passes SIGTERM on in any case
  return absl::StrCat("--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIG", signal, " ");
}

std::string ApplicationWords(const JobFile& job) {
  const auto& application = job.application;
  std::vector<std::string> words = application.command;
  if (!application.script.empty()) words = {application.script};
  words.insert(words.end(), application.arguments.begin(), application.arguments.end());
  std::string quoted = application.script.empty() ? "--no-python " : "";
  for (size_t i = 0; i < words.size(); ++i) absl::StrAppend(&quoted, i == 0 ? "" : " ", QuoteWithFolders(words[i]));
  return quoted;
}

std::string StageCommands(const JobFile& job) {
  if (!job.data.stage) return "";
  std::string script =
      "# The node reads a copy of the data on its own disk, which goes when the training ends.\n"
      "staged=$(mktemp -d)\n"
      "trap 'rm -rf \"$staged\"' EXIT\n";
  for (size_t i = 0; i < job.data.folders.size(); ++i) {
    absl::StrAppend(&script, "cp -R ", Quote(job.data.folders[i]), " \"$staged/", i, "\"\n");
  }
  return script + "data=$staged/0\n";
}

}  // namespace egeria::jobs

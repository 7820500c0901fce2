#include "jobs/job_fields.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace egeria::jobs {
namespace {

using Kind = Field::Kind;

constexpr Kind KindOf(const std::string*) { return Kind::kText; }
constexpr Kind KindOf(const std::vector<std::string>*) { return Kind::kTexts; }
constexpr Kind KindOf(const int*) { return Kind::kWhole; }
constexpr Kind KindOf(const bool*) { return Kind::kSwitch; }
constexpr Kind KindOf(const config::ByteCount*) { return Kind::kSize; }
constexpr Kind KindOf(const absl::Duration*) { return Kind::kDuration; }
constexpr Kind KindOf(const config::Part*) { return Kind::kPart; }

// Collects the declarations below. The returned reference is good until the next call.
class Table {
 public:
  template <typename T>
  Field& Add(const std::string& key, T* value, const std::string& help) {
    Field& field = New(key, help, KindOf(value));
    field.format = [value] { return config::Format(*value); };
    field.set = [value](const config::Words& words) { return config::Parse(words, value); };
    return field;
  }
  Field& Add(const std::string& key, TextMap* map, const std::string& help) {
    Field& field = New(key, help, Kind::kMap);
    field.map = map;
    return field;
  }
  Field& AddFolder(const std::string& key, std::string* value, const std::string& help) {
    Field& field = Add(key, value, help);
    field.is_folder = true;
    return field;
  }
  Field& AddFolders(const std::string& key, std::vector<std::string>* value, const std::string& help) {
    Field& field = Add(key, value, help);
    field.is_folder = true;
    return field;
  }
  void AddCount(const std::string& key, int* value, int64_t lowest, int64_t highest, const std::string& help) {
    Field& field = Add(key, value, help);
    field.lowest = lowest;
    field.highest = highest;
  }
  void AddChoice(const std::string& key, std::string* value, std::vector<std::string> choices,
                 const std::string& help) {
    Add(key, value, help).choices = std::move(choices);
  }
  std::vector<Field> Take() { return std::move(fields_); }

 private:
  Field& New(const std::string& key, const std::string& help, Kind kind) {
    Field& field = fields_.emplace_back();
    field.key = key;
    field.help = help;
    field.kind = kind;
    return field;
  }
  std::vector<Field> fields_;
};

void Matches(Field& field, const std::string& pattern, const std::string& words) {
  field.pattern = pattern;
  field.pattern_words = words;
}

constexpr char kNamePattern[] = "[a-z]([-a-z0-9]{0,38}[a-z0-9])?";
constexpr char kNameWords[] = "at most 40 lower-case letters, digits and hyphens, from a letter on";
constexpr char kVariablePattern[] = "[A-Za-z_][A-Za-z0-9_]*";
constexpr char kWordPattern[] = "[A-Za-z0-9_.-]*";

void AddApplication(JobFile* job, Table* table) {
  Field& name = table->Add("name", &job->name, "The name of the job for people, for the scheduler and in metrics.");
  name.required = true;
  Matches(name, kNamePattern, kNameWords);
  auto& application = job->application;
  table->Add("application.command", &application.command,
             "The program that every rank runs, with its arguments. Either this or application.script is given.");
  table->Add("application.script", &application.script, "The Python script that every rank runs.");
  table->Add(
      "application.arguments", &application.arguments,
      "The arguments of the script or the program, in which {data}, {output} and {checkpoints} stand for the folders.");
  Matches(table->Add("application.environment", &application.environment, "Variables of the training's environment."),
          kVariablePattern, "letters, digits and underscores");
  table->AddFolder("application.folder", &application.folder, "The folder in which the training runs.");
  table->AddFolders("application.path", &application.path,
                    "Folders of programs that come before others, such as the bin folder of a Python environment.");
}

void AddDataAndResources(JobFile* job, Table* table) {
  table->AddFolders("data.folders", &job->data.folders,
                    "Folders that the training only reads, the first of which is {data}.");
  table->Add("data.stage", &job->data.stage, "Each node copies the folders to its own disk before the training.");
  auto& resources = job->resources;
  table->AddCount("resources.nodes", &resources.nodes, 1, 4096, "The number of machines that the job takes.");
  table->AddCount("resources.ranks_per_node", &resources.ranks_per_node, 1, 256,
                  "The number of training processes on each node.");
  table->AddCount("resources.gpus_per_node", &resources.gpus_per_node, 0, 256, "The number of GPUs on each node.");
  table->AddCount("resources.cpus_per_rank", &resources.cpus_per_rank, 1, 1024,
                  "The number of processor cores of each rank, which is its number of compute threads as well.");
  table->Add("resources.memory_per_node", &resources.memory_per_node, "The memory of each node (0 leaves it open).");
  table->Add("resources.time_limit", &resources.time_limit,
             "The time that one run of the job may take (0 sets no limit).");
}

void AddEgeria(JobFile* job, Table* table) {
  auto& egeria = job->egeria;
  table->AddChoice("egeria.policy", &egeria.policy,
                   {"auto", "staged", "plasticity", "finetune", "gradnorm", "actnorm", "schedule", "snr", "none"},
                   "The policy (docs/reference/policies.md), in place of the one that the training itself names.");
  table->Add("egeria.options", &egeria.options,
             "Constants of the policy, by their names (docs/reference/policies.md).");
  table->Add("egeria.budget", &egeria.budget, "The part of the time to save (0 leaves that to the policy).");
  table->Add("egeria.observe", &egeria.observe, "Egeria decides and reports, but freezes nothing.");
  table->Add("egeria.controller", &egeria.controller,
             "The job's controller: own starts one with the job, none trains without, and unix:/path or host:port is "
             "one that runs.");
  table->Add("egeria.cache", &egeria.cache,
             "The cache of each node: a folder on its own disk, default for the user's folder, or none.");
  table->Add("egeria.cache_quota", &egeria.cache_quota,
             "The disk space of the cache on each node (0 is the cache's default).");
  auto& checkpoints = job->checkpoints;
  table->AddFolder("checkpoints.folder", &checkpoints.folder,
                   "The folder in which the training writes its checkpoints, and looks for one when it starts.");
  table->AddChoice("checkpoints.signal", &checkpoints.signal, {"USR1", "USR2", "TERM", "none"},
                   "The signal by which every rank learns that the time limit is near.");
  table->Add("checkpoints.signal_before", &checkpoints.signal_before,
             "The time between the signal and the time limit.");
  table->AddCount("checkpoints.restarts", &checkpoints.restarts, 0, 10000,
                  "The number of times that Slurm starts a job again after its time limit.");
  table
      ->AddFolder("output.folder", &job->output.folder,
                  "The folder of the job's log and its state, which every node sees.")
      .required = true;
}

void AddEngines(JobFile* job, Table* table) {
  Matches(table->Add("slurm.partition", &job->slurm.partition, "The partition of the cluster."), kWordPattern,
          "letters, digits, dots, underscores and hyphens");
  Matches(table->Add("slurm.account", &job->slurm.account, "The account that is charged."), kWordPattern,
          "letters, digits, dots, underscores and hyphens");
  Matches(table->Add("slurm.options", &job->slurm.options, "Further options of sbatch, such as --constraint=a100."),
          "--[a-z][a-z0-9-]*(=[A-Za-z0-9_.,:/@&|*+-]+)?", "an option of sbatch such as --constraint=a100");
  auto& kubernetes = job->kubernetes;
  table->AddChoice("kubernetes.kind", &kubernetes.kind, {"TrainJob", "PyTorchJob"},
                   "The kind of the training: Kubeflow Trainer's TrainJob, or PyTorchJob of the older operator.");
  Matches(table->Add("kubernetes.namespace", &kubernetes.space, "The namespace of all that the job makes."),
          kNamePattern, kNameWords);
  table->Add("kubernetes.image", &kubernetes.image,
             "The container image that has the training, torch and Egeria's programs.");
  table->Add("kubernetes.controller_image", &kubernetes.controller_image,
             "The container image of egeria-controller, in place of kubernetes.image.");
  Matches(table->Add("kubernetes.claims", &kubernetes.claims,
                     "Persistent volume claims, in which the job's folders lie, by the folder where they are mounted."),
          "/.+", "an absolute folder");
  Matches(table->Add("kubernetes.runtime", &kubernetes.runtime, "The ClusterTrainingRuntime of a TrainJob."),
          kNamePattern, kNameWords);
  Matches(table->Add("kubernetes.tls_secret", &kubernetes.tls_secret,
                     "The Secret with ca.crt, tls.crt and tls.key, by which the job and its controller know each "
                     "other."),
          kNamePattern, kNameWords);
  table->AddCount("kubernetes.user", &kubernetes.user, 1, 2147483647,
                  "The number of the user whom the containers run as, who is the cache's user as well.");
}

}  // namespace

std::vector<Field> JobFields(JobFile* job) {
  Table table;
  AddApplication(job, &table);
  AddDataAndResources(job, &table);
  AddEgeria(job, &table);
  AddEngines(job, &table);
  return table.Take();
}

const TextMap& SectionHelp() {
  static const auto& help = *new TextMap{
      {"application", "This section names the training."},
      {"data", "This section names the data."},
      {"resources", "This section asks for machines."},
      {"egeria", "This section sets up Egeria."},
      {"checkpoints", "This section says how the training goes on after its time limit."},
      {"output", "This section names the place of the results."},
      {"slurm", "This section is for Slurm alone."},
      {"kubernetes", "This section is for Kubernetes alone."},
  };
  return help;
}

}  // namespace egeria::jobs

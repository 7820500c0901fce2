#ifndef EGERIA_JOBS_JOB_FILE_H_
#define EGERIA_JOBS_JOB_FILE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/config/values.h"

namespace egeria::jobs {

// The texts of a map of the file, by name.
using TextMap = std::map<std::string, std::string>;

// A training as egeria.yaml describes it. jobs/job_fields.cc says what each field means, and docs/reference/job-file.md
// is made from that. Folders are absolute here: those of the file are taken from the folder that it lies in.
struct JobFile {
  std::string name;

  struct Application {
    std::vector<std::string> command;
    std::string script;
    std::vector<std::string> arguments;
    TextMap environment;
    std::string folder = ".";
    std::vector<std::string> path;
  } application;

  struct Data {
    std::vector<std::string> folders;
    bool stage = false;
  } data;

  struct Resources {
    int nodes = 1;
    int ranks_per_node = 1;
    int gpus_per_node = 0;
    int cpus_per_rank = 1;
    config::ByteCount memory_per_node;
    absl::Duration time_limit;
  } resources;

  struct Egeria {
    std::string policy;
    TextMap options;
    config::Part budget;
    bool observe = false;
    std::string controller = "own";
    std::string cache = "default";
    config::ByteCount cache_quota;
  } egeria;

  struct Checkpoints {
    std::string folder;
    std::string signal = "USR1";
    absl::Duration signal_before = absl::Minutes(2);
    int restarts = 20;
  } checkpoints;

  struct Output {
    std::string folder;
  } output;

  struct Slurm {
    std::string partition;
    std::string account;
    std::vector<std::string> options;
  } slurm;

  struct Kubernetes {
    std::string kind = "TrainJob";
    std::string space = "default";
    std::string image;
    std::string controller_image;
    TextMap claims;
    std::string runtime = "torch-distributed";
    std::string tls_secret = "egeria-tls";
    int user = 1000;
  } kubernetes;

  int ranks() const { return resources.nodes * resources.ranks_per_node; }
  // The value of egeria.controller where it is an address, else "".
  std::string controller_address() const {
    return egeria.controller == "own" || egeria.controller == "none" ? "" : egeria.controller;
  }
};

// Reads and checks a job file.
// Errors: NOT_FOUND the file cannot be read; INVALID_ARGUMENT naming file, line and key, what is wrong and what to do.
absl::StatusOr<JobFile> ReadJobFile(const std::string& path);

}  // namespace egeria::jobs

#endif  // EGERIA_JOBS_JOB_FILE_H_

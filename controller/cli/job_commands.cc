#include "controller/cli/job_commands.h"

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "jobs/backend.h"
#include "jobs/job_file.h"
#include "jobs/job_schema.h"
#include "jobs/submission.h"

namespace egeria::cli {
namespace {

using jobs::Backend;
using jobs::JobFile;
using jobs::Submission;

struct JobFlags {
  std::string file = "egeria.yaml";
  std::string engine = "local";
  bool dry_run = false;
  bool follow = false;
  bool schema = false;
  bool reference = false;
};

absl::StatusOr<std::string> CompileText(const JobFlags& flags, const JobFile& job) {
  EGERIA_ASSIGN_OR_RETURN(const Backend* backend, jobs::FindBackend(flags.engine));
  absl::StatusOr<std::string> text = backend->Compile(job);
  if (text.ok()) return text;
  return absl::Status(text.status().code(), absl::StrCat(flags.file, ": ", text.status().message()));
}

absl::Status Compile(const JobFlags& flags, Streams streams) {
  if (flags.schema || flags.reference) {
    streams.out << (flags.schema ? jobs::JobFileSchema() : jobs::JobFilePage());
    return absl::OkStatus();
  }
  EGERIA_ASSIGN_OR_RETURN(const JobFile job, jobs::ReadJobFile(flags.file));
  EGERIA_ASSIGN_OR_RETURN(const std::string text, CompileText(flags, job));
  streams.out << text;
  return absl::OkStatus();
}

// The back end of what was submitted, and its state.
struct Submitted {
  Submission submission;
  const Backend* backend = nullptr;
};

absl::StatusOr<Submitted> FindSubmitted(const std::string& file) {
  EGERIA_ASSIGN_OR_RETURN(const JobFile job, jobs::ReadJobFile(file));
  Submitted found;
  EGERIA_ASSIGN_OR_RETURN(found.submission, jobs::ReadSubmission(job.output.folder));
  EGERIA_ASSIGN_OR_RETURN(found.backend, jobs::FindBackend(found.submission.engine));
  return found;
}

// Two runs of one job would write into each other's output and checkpoints.
absl::Status CheckThatNoneRuns(const JobFlags& flags) {
  const absl::StatusOr<Submitted> before = FindSubmitted(flags.file);
  if (absl::IsNotFound(before.status())) return absl::OkStatus();
  if (!before.ok()) return before.status();
  const absl::StatusOr<jobs::JobStatus> status = before->backend->Status(before->submission);
  if (!status.ok() || status->ended) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the job is ", status->words, " already, as ", before->submission.engine, " ", before->submission.id,
                   "; `egeria cancel` ends it, and another output.folder starts another job"));
}

absl::Status Submit(const JobFlags& flags, Streams streams) {
  if (flags.dry_run) return Compile(flags, streams);
  EGERIA_ASSIGN_OR_RETURN(const JobFile job, jobs::ReadJobFile(flags.file));
  EGERIA_ASSIGN_OR_RETURN(const std::string text, CompileText(flags, job));
  EGERIA_RETURN_IF_ERROR(CheckThatNoneRuns(flags));
  EGERIA_ASSIGN_OR_RETURN(const Backend* backend, jobs::FindBackend(flags.engine));
  Submission submission;
  submission.engine = backend->name();
  submission.name = job.name;
  submission.output = job.output.folder;
  submission.space = job.kubernetes.space;
  submission.submitted = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  submission.script = absl::StrCat(job.output.folder, "/job.", flags.engine == "kubernetes" ? "yaml" : "sh");
  EGERIA_RETURN_IF_ERROR(jobs::WriteFile(submission.script, text));
  std::remove(absl::StrCat(job.output.folder, "/exit_code").c_str());
  EGERIA_ASSIGN_OR_RETURN(submission.id, backend->Submit(submission));
  EGERIA_RETURN_IF_ERROR(jobs::WriteSubmission(submission));
  streams.out << "The job " << job.name << " is submitted as " << submission.engine << " " << submission.id
              << "; what runs is in " << submission.script << ".\n";
  return absl::OkStatus();
}

absl::Status Status(const JobFlags& flags, Streams streams) {
  EGERIA_ASSIGN_OR_RETURN(const Submitted found, FindSubmitted(flags.file));
  EGERIA_ASSIGN_OR_RETURN(const jobs::JobStatus status, found.backend->Status(found.submission));
  const Submission& submission = found.submission;
  streams.out << submission.name << ": " << status.words << " (" << submission.engine << " " << submission.id
              << ", submitted " << submission.submitted << ")\n";
  return absl::OkStatus();
}

absl::Status Logs(const JobFlags& flags, Streams streams) {
  EGERIA_ASSIGN_OR_RETURN(const Submitted found, FindSubmitted(flags.file));
  return found.backend->Logs(found.submission, flags.follow, streams.out);
}

absl::Status Cancel(const JobFlags& flags, Streams streams) {
  EGERIA_ASSIGN_OR_RETURN(const Submitted found, FindSubmitted(flags.file));
  EGERIA_RETURN_IF_ERROR(found.backend->Cancel(found.submission));
  streams.out << "The job " << found.submission.name << " is asked to end.\n";
  return absl::OkStatus();
}

using Run = absl::Status (*)(const JobFlags&, Streams);

// A subcommand with the argument that all of them have.
CLI::App* AddCommand(CLI::App& app, const Select& select, const std::string& name, const std::string& help, Run run,
                     const std::shared_ptr<JobFlags>& flags) {
  CLI::App* command = app.add_subcommand(name, help);
  command->add_option("file", flags->file, "The job file (docs/guides/job-files.md)")->capture_default_str();
  command->callback([flags, select, run] { select([flags, run](Streams streams) { return run(*flags, streams); }); });
  return command;
}

}  // namespace

void AddJobCommands(CLI::App& app, const Select& select) {
  const auto flags = std::make_shared<JobFlags>();
  CLI::App* compile =
      AddCommand(app, select, "compile", "Print what a job file becomes: all that would be run.", Compile, flags);
  compile->add_flag("--schema", flags->schema, "Print the JSON Schema of job files instead");
  compile->add_flag("--reference", flags->reference, "Print the reference page of job files instead");
  CLI::App* submit = AddCommand(app, select, "submit", "Run a job file's training.", Submit, flags);
  submit->add_flag("--dry-run", flags->dry_run, "Print what would be run, and run nothing");
  for (CLI::App* command : {compile, submit}) {
    command->add_option("--to", flags->engine, "Where the job runs: local, slurm or kubernetes")->capture_default_str();
  }
  AddCommand(app, select, "status", "Say whether a submitted job waits, runs or has ended.", Status, flags);
  AddCommand(app, select, "logs", "Show what a submitted job has printed.", Logs, flags)
      ->add_flag("-f,--follow", flags->follow, "Show what it prints until it ends");
  AddCommand(app, select, "cancel", "End a submitted job.", Cancel, flags);
}

}  // namespace egeria::cli

#include "jobs/submission.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace egeria::jobs {
namespace {

constexpr auto kLogInterval = std::chrono::milliseconds(500);

std::string StateFile(const std::string& output) { return output + "/job.json"; }

}  // namespace

std::string LogFile(const std::string& output) { return output + "/log.txt"; }

absl::Status WriteFile(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
  std::ofstream file(part);
  file << text;
  file.close();
  if (!file || std::rename(part.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path, "; choose another output.folder"));
  }
  return absl::OkStatus();
}

absl::Status WriteSubmission(const Submission& submission) {
  const nlohmann::ordered_json object = {
      {"engine", submission.engine},       {"name", submission.name},     {"id", submission.id},
      {"submitted", submission.submitted}, {"script", submission.script}, {"namespace", submission.space},
  };
  return WriteFile(StateFile(submission.output), object.dump(2) + "\n");
}

absl::StatusOr<Submission> ReadSubmission(const std::string& output) {
  std::ifstream file(StateFile(output));
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat(output, " has no job.json: nothing was submitted; `egeria submit` does that"));
  }
  const auto object = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(StateFile(output), " is damaged; remove it and submit the job again"));
  }
  const auto text = [&](const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  Submission submission;
  submission.engine = text("engine");
  submission.name = text("name");
  submission.id = text("id");
  submission.submitted = text("submitted");
  submission.script = text("script");
  submission.space = text("namespace");
  submission.output = output;
  return submission;
}

std::optional<JobStatus> StatusByExitCode(const std::string& output) {
  std::ifstream file(output + "/exit_code");
  int code = 0;
  if (!(file >> code)) return std::nullopt;
  return StatusByExitCode(code);
}

JobStatus StatusByExitCode(int code) {
  if (code == 0) return JobStatus{true, "finished"};
  if (code == 124) return JobStatus{true, "ended by its time limit; `egeria submit` goes on from its checkpoint"};
  if (code == 143) return JobStatus{true, "cancelled"};
  return JobStatus{true, absl::StrCat("failed with exit code ", code, "; `egeria logs` shows why")};
}

absl::Status CopyLog(const std::string& output, const std::function<bool()>& running, std::ostream& out) {
  std::ifstream file(LogFile(output));
  if (!file && !running()) {
    return absl::NotFoundError(absl::StrCat(LogFile(output), " is not there: the job has printed nothing"));
  }
  for (bool last = false;; std::this_thread::sleep_for(kLogInterval)) {
    last = !running();
    if (!file.is_open()) file.open(LogFile(output));
    char bytes[4096];
    while (file.read(bytes, sizeof(bytes)) || file.gcount() > 0) out.write(bytes, file.gcount());
    out.flush();
    file.clear();
    if (last || !out) return absl::OkStatus();
  }
}

}  // namespace egeria::jobs

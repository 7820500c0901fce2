// egeria-train: a data-parallel image classifier that a controller may freeze in part. Run it with
// torchrun --no-python, with egeria-run, or alone.
#include <cstdio>
#include <exception>
#include <string>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/config/environment.h"
#include "worker/trainer/agreed_options.h"
#include "worker/trainer/launch.h"
#include "worker/trainer/options.h"
#include "worker/trainer/summary.h"
#include "worker/trainer/trainer.h"

namespace egeria::trainer {
namespace {

absl::Status RunProgram(Options options) {
  EGERIA_ASSIGN_OR_RETURN(const c10::Device device, ChooseDevice(options.device));
  EGERIA_ASSIGN_OR_RETURN(const Launch launch, JoinLaunch(options.restarts, device));
  EGERIA_RETURN_IF_ERROR(AgreeOnOptions(launch.member, &options));
  EGERIA_ASSIGN_OR_RETURN(const RunSummary summary, Train(options, launch, device));
  if (launch.member.rank != 0) return absl::OkStatus();
  std::printf("%s\n", Describe(summary).c_str());
  if (options.summary.empty()) return absl::OkStatus();
  return WriteAtomically(options.summary, ToJson(summary));
}

// 2 for what the user can put right, 1 for the rest.
int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return 0;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound: return 2;
    default: return 1;
  }
}

}  // namespace
}  // namespace egeria::trainer

int main(int argc, char** argv) {
  const egeria::trainer::CommandLine line = egeria::trainer::ParseCommandLine(argc, argv);
  if (line.exit_code.has_value()) return *line.exit_code;
  egeria::LogLevel level = egeria::LogLevel::kInfo;
  egeria::ParseLogLevel(line.options.log_level, &level);
  egeria::ConfigureLogging("egeria-train", level);
  egeria::config::WarnOfUnknownVariables();
  absl::Status status;
  try {
    status = egeria::trainer::RunProgram(line.options);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    status = absl::InternalError(text.substr(0, text.find('\n')));
  }
  if (!status.ok()) std::fprintf(stderr, "egeria-train: %s\n", std::string(status.message()).c_str());
  return egeria::trainer::ExitCode(status);
}

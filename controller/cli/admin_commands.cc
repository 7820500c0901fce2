#include "controller/cli/admin_commands.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/printable.h"
#include "common/base/status.h"
#include "controller/cli/admin_client.h"
#include "controller/cli/python_program.h"
#include "controller/job/job_phase.h"
#include "controller/job/policy_inputs.h"
#include "controller/replay/replay.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

namespace egeria::cli {
namespace {

struct Flags {
  std::string controller;
  std::string admin;
  std::string job;
  std::string reason;
  std::string mode;
  double wait = 0;
  int prefix = 0;
  bool json = false;
  bool decisions = false;
  bool force = false;
  std::string tensorboard;
};

std::string StateOf(const v1::JobSummary& job) {
  std::string state = controller::PhaseName(job.phase());
  if (job.mode() == v1::MODE_OBSERVE) state += ", observing";
  if (job.paused()) state += ", paused";
  if (job.bootstrapping()) state += ", bootstrapping";
  if (!job.blocked().empty()) state += ", blocked";
  return state;
}

std::vector<std::string> RowOf(const v1::JobSummary& job) {
  return {job.job_id(),
          Printable(job.training_job()),
          StateOf(job),
          job.total_steps() > 0 ? absl::StrCat(job.step(), "/", job.total_steps()) : absl::StrCat(job.step()),
          absl::StrCat(job.connected_ranks(), "/", job.world_size()),
          job.policy(),
          absl::StrCat(job.decided_prefix(), "/", job.applied_prefix(), "/", job.module_count(),
                       job.frozen_by_script() > 0 ? absl::StrCat(", ", job.frozen_by_script(), " by script") : ""),
          absl::StrFormat("%.1f%%", 100 * job.frozen_parameter_share()),
          absl::StrCat(job.readings())};
}

absl::Status WriteJson(const google::protobuf::Message& message, std::ostream& out) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) {
    return absl::InternalError("a message cannot be written as JSON");
  }
  // Protobuf writes 64-bit integers as strings; whoever reads this expects numbers.
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(text);
  const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = descriptor.field(i);
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_INT64 && !field->is_repeated()) {
      json[field->name()] = message.GetReflection()->GetInt64(message, field);
    }
  }
  out << json.dump() << "\n";
  return absl::OkStatus();
}

absl::Status List(const Flags& flags, AdminClient& client, Streams streams) {
  EGERIA_ASSIGN_OR_RETURN(const v1::ListJobsResponse response, client.ListJobs());
  if (flags.json) {
    for (const v1::JobSummary& job : response.jobs()) EGERIA_RETURN_IF_ERROR(WriteJson(job, streams.out));
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows = {{"JOB", "NAME", "STATE", "STEP", "RANKS", "POLICY",
                                                 "FROZEN (decided/applied/modules)", "PARAMETERS", "READINGS"}};
  for (const v1::JobSummary& job : response.jobs()) rows.push_back(RowOf(job));
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const bool last = i + 1 == row.size();
      streams.out << row[i] << (last ? "\n" : std::string(widths[i] - row[i].size() + 2, ' '));
    }
  }
  return absl::OkStatus();
}

// Leaves the whole history in a file without a name, which Python reads as its input. Returns only if it fails.
absl::Status ExportForTensorBoard(const std::string& job, const std::string& folder, AdminClient& client) {
  EGERIA_ASSIGN_OR_RETURN(const std::string python, FindPythonWithPackage());
  std::FILE* file = std::tmpfile();
  if (file == nullptr) return absl::UnavailableError(absl::StrCat("cannot make a file: ", std::strerror(errno)));
  absl::Status written;
  EGERIA_RETURN_IF_ERROR(client.ExportJob(job, [&](const v1::ExportRecord& record) {
    std::ostringstream line;
    if (record.has_header()) {
      const auto& modules = record.header().modules();
      const nlohmann::json names = {{"modules", std::vector<std::string>(modules.begin(), modules.end())}};
      line << names.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    } else if (record.has_decision()) {
      written.Update(WriteJson(record.decision(), line));
    } else if (record.has_observation()) {
      line << controller::FormatObservation(controller::ObservationFromProto(record.observation())) << "\n";
    }
    std::fputs(line.str().c_str(), file);
  }));
  EGERIA_RETURN_IF_ERROR(written);
  if (std::fflush(file) != 0 || std::fseek(file, 0, SEEK_SET) != 0 || dup2(fileno(file), STDIN_FILENO) < 0) {
    return absl::UnavailableError(absl::StrCat("cannot write the history to a file: ", std::strerror(errno)));
  }
  return BecomePython(python, {"-m", "egeria.monitor.tensorboard", folder});
}

absl::Status Export(const Flags& flags, AdminClient& client, Streams streams) {
  EGERIA_ASSIGN_OR_RETURN(const std::string job, client.ResolveJob(flags.job));
  if (!flags.tensorboard.empty()) return ExportForTensorBoard(job, flags.tensorboard, client);
  absl::Status written;
  const absl::Status read = client.ExportJob(job, [&](const v1::ExportRecord& record) {
    if (record.has_header()) {
      streams.err << "egeria export: job " << job << ", " << record.header().modules_size() << " modules, policy "
                  << record.header().policy().ShortDebugString() << "\n";
      if (!flags.decisions) streams.out << controller::FormatJob(controller::ShapeOf(record.header())) << "\n";
    } else if (record.has_decision() && flags.decisions) {
      if (absl::Status status = WriteJson(record.decision(), streams.out); !status.ok()) written = status;
    } else if (record.has_decision() && record.decision().origin() != v1::DECISION_ORIGIN_POLICY) {
      streams.out << controller::FormatAdoption(record.decision().step(), record.decision().frozen_prefix()) << "\n";
    } else if (record.has_observation() && !flags.decisions) {
      streams.out << controller::FormatObservation(controller::ObservationFromProto(record.observation())) << "\n";
    }
  });
  return read.ok() ? written : read;
}

absl::Status Freeze(const Flags& flags, AdminClient& client, Streams streams) {
  EGERIA_ASSIGN_OR_RETURN(const std::string job, client.ResolveJob(flags.job));
  EGERIA_ASSIGN_OR_RETURN(const int64_t plan, client.SetFrozenPrefix(job, flags.prefix, flags.reason, flags.force));
  streams.out << "plan " << plan << ": frozen prefix " << flags.prefix << "\n";
  return absl::OkStatus();
}

absl::Status SetPaused(const Flags& flags, bool paused, AdminClient& client, Streams streams) {
  EGERIA_ASSIGN_OR_RETURN(const std::string job, client.ResolveJob(flags.job));
  EGERIA_RETURN_IF_ERROR(client.SetPaused(job, paused));
  streams.out << "job " << job << (paused ? " is paused\n" : " goes on\n");
  return absl::OkStatus();
}

absl::Status SetMode(const Flags& flags, AdminClient& client, Streams streams) {
  EGERIA_ASSIGN_OR_RETURN(const std::string job, client.ResolveJob(flags.job));
  EGERIA_RETURN_IF_ERROR(client.SetMode(job, flags.mode == "act" ? v1::MODE_ACT : v1::MODE_OBSERVE));
  streams.out << "job " << job << " is in " << flags.mode << " mode\n";
  return absl::OkStatus();
}

using Call = std::function<absl::Status(const Flags&, AdminClient&, Streams)>;

// Tries again for `flags.wait` seconds while no controller answers.
absl::Status CallController(const Flags& flags, const Call& call, Streams streams) {
  const absl::Time end = absl::Now() + absl::Seconds(flags.wait);
  for (;;) {
    absl::StatusOr<AdminClient> client = AdminClient::Connect(flags.controller, flags.admin);
    const absl::Status status = client.ok() ? call(flags, *client, streams) : client.status();
    if (!absl::IsUnavailable(status) || absl::Now() >= end) return status;
    absl::SleepFor(absl::Milliseconds(100));
  }
}

struct AdminCommand {
  CLI::App* app;
  std::shared_ptr<Flags> flags;  // its own: a variable sets those of every command, whatever the arguments say
};

// A subcommand with --controller and, where `takes_job`, the job.
AdminCommand Add(CLI::App& app, const Select& select, const char* name, const char* help, bool takes_job, Call call) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(name, help);
  command->add_option("--controller", flags->controller, "Address of the controller, unix:/path")
      ->envname("EGERIA_CONTROLLER");
  command
      ->add_option("--admin", flags->admin, "Address for operators, unless it lies beside the controller's Unix socket")
      ->envname("EGERIA_ADMIN");
  if (takes_job) {
    command->add_option("job", flags->job, "The job's id, the beginning of it, or the job's name")->required();
  }
  command->callback([flags, select, call = std::move(call)] {
    select([flags, call](Streams streams) { return CallController(*flags, call, streams); });
  });
  return {command, flags};
}

}  // namespace

void AddAdminCommands(CLI::App& app, const Select& select) {
  const AdminCommand list = Add(app, select, "list", "Show the controller's jobs.", false, List);
  list.app->add_flag("--json", list.flags->json, "Print one JSON object for each job");
  list.app->add_option("--wait", list.flags->wait, "Seconds to wait for a controller that does not answer yet")
      ->check(CLI::Range(0.0, 3600.0));

  const AdminCommand exported =
      Add(app, select, "export", "Write what a job's policy saw, for `egeria replay`.", true, Export);
  exported.app->add_flag("--decisions", exported.flags->decisions, "Write the decisions with their reasons instead");
  exported.app->add_option("--tensorboard", exported.flags->tensorboard,
                           "Write the history into this folder for TensorBoard instead");

  const AdminCommand freeze = Add(app, select, "freeze", "Freeze a job's first modules.", true, Freeze);
  freeze.app
      ->add_option("prefix", freeze.flags->prefix, "Number of modules to freeze, from the first on; 0 unfreezes all")
      ->required();
  freeze.app->add_option("--reason", freeze.flags->reason, "Reason, which the audit log keeps");
  freeze.app->add_flag("--force", freeze.flags->force, "Freeze although the job's policy objects");

  const AdminCommand unfreeze = Add(app, select, "unfreeze", "Unfreeze all modules of a job.", true, Freeze);
  unfreeze.app->add_option("--reason", unfreeze.flags->reason, "Reason, which the audit log keeps");

  Add(app, select, "pause", "Stop a job's policy from deciding; what is frozen stays frozen.", true,
      [](const Flags& f, AdminClient& client, Streams streams) { return SetPaused(f, true, client, streams); });
  Add(app, select, "resume", "Let a job's policy decide again.", true,
      [](const Flags& f, AdminClient& client, Streams streams) { return SetPaused(f, false, client, streams); });

  const AdminCommand mode = Add(app, select, "mode", "Switch a job between act and observe.", true, SetMode);
  mode.app->add_option("mode", mode.flags->mode, "act: decisions become plans; observe: they are only reported")
      ->required()
      ->check(CLI::IsMember({"act", "observe"}));
}

}  // namespace egeria::cli

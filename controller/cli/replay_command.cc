#include "controller/cli/replay_command.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/policy/constants.h"
#include "common/policy/policy_config.h"
#include "common/policy/policy_proto.h"
#include "controller/replay/replay.h"
#include "google/protobuf/util/json_util.h"

namespace egeria::cli {
namespace {

struct ReplayFlags {
  std::string file;
  std::string policy = "plasticity";
  std::string schedule;
  std::string bootstrap = "on";
  std::string options;
  CLI::Option* total_steps = nullptr;
  policy::PlasticityConfig plasticity;
  policy::JobShape shape;
};

template <typename... Args>
absl::Status BadFlag(const Args&... message) {
  return absl::InvalidArgumentError(absl::StrCat(message...));
}

absl::StatusOr<policy::ScheduleConfig> ParseSchedule(const std::string& text) {
  policy::ScheduleConfig config;
  for (const std::string& item : std::vector<std::string>(absl::StrSplit(text, ',', absl::SkipWhitespace()))) {
    const std::vector<std::string> parts = absl::StrSplit(item, ':');
    policy::ScheduleConfig::Entry entry;
    if (parts.size() != 2 || !absl::SimpleAtod(parts[0], &entry.fraction) ||
        !absl::SimpleAtoi(parts[1], &entry.frozen_prefix)) {
      return BadFlag("--schedule has \"", item, "\": write FRACTION:PREFIX, such as 0.5:2,0.75:4");
    }
    config.entries.push_back(entry);
  }
  return config;
}

// The policy's constants as the JSON object of egeria.v1.PolicyConfig.
absl::StatusOr<policy::PolicyConfig> ParseOptions(const ReplayFlags& flags) {
  const std::string text = absl::StrCat("{\"", flags.policy, "\":", flags.options.empty() ? "{}" : flags.options, "}");
  v1::PolicyConfig proto;
  const auto parsed = google::protobuf::util::JsonStringToMessage(text, &proto);
  if (parsed.ok()) return policy::FromProto(proto);
  return BadFlag("--options: ", std::string(parsed.message()),
                 ": write a JSON object of the policy's constants, such as '{\"start\":0.5}'");
}

absl::StatusOr<policy::PolicyConfig> ConfigOf(const ReplayFlags& flags) {
  if (flags.policy == "schedule" && flags.options.empty()) return ParseSchedule(flags.schedule);
  const bool rule = flags.policy == "plasticity" || flags.policy == "actnorm";  // on whichever metric
  if (!rule || !flags.options.empty()) return ParseOptions(flags);
  policy::PlasticityConfig config = flags.plasticity;
  config.bootstrap = flags.bootstrap == "on";
  if (flags.policy == "actnorm") return policy::ActnormConfig{config};
  return config;
}

struct Recording {
  std::vector<controller::Recorded> lines;
  int array_length = 0;
  bool has_loss = false;
  std::optional<policy::JobShape> job;
};

absl::StatusOr<Recording> Read(std::istream& in, std::ostream& err) {
  Recording recording;
  controller::RecordingParser parser;
  std::string line;
  while (std::getline(in, line)) {
    EGERIA_ASSIGN_OR_RETURN(std::optional<controller::Recorded> recorded, parser.ParseLine(line));
    if (!recorded) continue;
    recording.has_loss = recording.has_loss || recorded->observation.loss.has_value();
    recording.lines.push_back(*std::move(recorded));
  }
  if (in.bad()) return BadFlag("the recording could not be read to its end");
  for (const std::string& key : parser.unknown_keys()) {
    err << "egeria replay: ignored the key \"" << key << "\", which a recording does not have\n";
  }
  recording.array_length = parser.array_length();
  recording.job = parser.job();
  return recording;
}

absl::StatusOr<Recording> ReadFile(const std::string& file, Streams streams) {
  if (file == "-") return Read(streams.in, streams.err);
  std::ifstream in(file);
  if (!in) return BadFlag("cannot read ", file, ": give a file of readings, or - for the standard input");
  absl::StatusOr<Recording> recording = Read(in, streams.err);
  if (recording.ok()) return recording;
  return absl::Status(recording.status().code(), absl::StrCat(file, ": ", std::string(recording.status().message())));
}

absl::Status Replay(ReplayFlags flags, Streams streams) {
  EGERIA_ASSIGN_OR_RETURN(const policy::PolicyConfig config, ConfigOf(flags));
  EGERIA_ASSIGN_OR_RETURN(const Recording recording, ReadFile(flags.file, streams));
  if (recording.job) {
    const policy::JobShape given = std::exchange(flags.shape, *recording.job);
    if (given.modules > 0) flags.shape.modules = given.modules;
    if (flags.total_steps->count() > 0) flags.shape.total_steps = given.total_steps;
  }
  if (flags.shape.modules == 0) flags.shape.modules = recording.array_length;
  if (flags.shape.modules == 0) {
    return BadFlag("give --modules: the recording has no array that tells how many there are");
  }
  // A job whose policy had no use for losses has recorded none, although its ranks may have reported them.
  flags.shape.losses_reported = flags.shape.losses_reported && recording.has_loss;
  EGERIA_ASSIGN_OR_RETURN(const std::unique_ptr<policy::Policy> policy, policy::MakePolicy(config, flags.shape));
  EGERIA_ASSIGN_OR_RETURN(const std::vector<policy::Decision> decisions,
                          controller::Replay(recording.lines, flags.shape.modules, *policy));
  for (const policy::Decision& decision : decisions) streams.out << controller::FormatDecision(decision) << "\n";
  if (decisions.empty() && policy->status().bootstrapping) {
    streams.err << "egeria replay: no decisions, since the bootstrapping stage did not end: "
                << (recording.has_loss ? "the loss never settled" : "without a loss it lasts 6 n steps")
                << "; --bootstrap off skips it\n";
  }
  return absl::OkStatus();
}

std::string PolicyHelp() {
  std::string text = "Policies and their constants, for --options:\n";
  for (const policy::PolicyKind& kind : policy::PolicyKinds()) {
    absl::StrAppend(&text, "  ", kind.name, ": ", kind.sentence, "\n");
    for (const policy::Constant& constant : kind.constants) {
      const std::string unit = constant.unit[0] == '\0' ? "" : absl::StrCat(", ", constant.unit);
      absl::StrAppend(&text, "    ", constant.name, unit, ": ", constant.sentence, " (", constant.DefaultText(), ")\n");
    }
  }
  return text;
}

}  // namespace

void AddReplayCommand(CLI::App& app, const Select& select) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* command = app.add_subcommand(
      "replay", "Feed recorded readings to a policy and print its decisions, one JSON object a line.");
  command->footer(PolicyHelp);
  policy::PlasticityConfig& plasticity = flags->plasticity;
  const auto sentence = [](const char* constant) -> std::string {
    return policy::FindConstant(policy::KindOf(policy::PlasticityConfig()), constant)->sentence;
  };
  command
      ->add_option("file", flags->file,
                   "Recording with one JSON object a line, as `egeria export` writes it; - for standard input")
      ->required();
  command->add_option("--policy", flags->policy, "The policy that decides")
      ->check(CLI::IsMember(policy::PolicyNames()))
      ->capture_default_str();
  command->add_option("--options", flags->options,
                      "The policy's constants as a JSON object, in place of single flags: {\"start\":0.5}");
  command->add_option("--modules", flags->shape.modules,
                      "Number of layer modules; arrays in the recording tell it, too");
  flags->total_steps =
      command
          ->add_option("--total-steps", flags->shape.total_steps,
                       "Number of steps of the training; 0: unknown; the line \"job\" of a recording tells it, too")
          ->capture_default_str();
  command
      ->add_option("--interval", plasticity.interval_steps,
                   sentence("interval_steps") + "; 0: from --total-steps, else 50")
      ->capture_default_str();
  command->add_option("--window", plasticity.window, sentence("window"))->capture_default_str();
  command->add_option("--tolerance", plasticity.tolerance, sentence("tolerance"))->capture_default_str();
  command
      ->add_option("--bootstrap", flags->bootstrap,
                   sentence("bootstrap") + "; this takes 6 n steps where the recording has no loss")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  command->add_flag("--signed", plasticity.signed_slope, sentence("signed_slope"));
  command
      ->add_option("--learning-rate-drop", plasticity.learning_rate_drop, sentence("learning_rate_drop") + "; 0: never")
      ->capture_default_str();
  command
      ->add_option("--learning-rate-rise", plasticity.learning_rate_rise, sentence("learning_rate_rise") + "; 0: never")
      ->capture_default_str();
  command->add_option("--unfreeze-step", plasticity.unfreeze_steps, sentence("unfreeze_steps") + " (repeatable)")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--schedule", flags->schedule, "Entries of the policy schedule: FRACTION:PREFIX,...");
  command->callback([flags, select] { select([flags](Streams streams) { return Replay(*flags, streams); }); });
}

}  // namespace egeria::cli

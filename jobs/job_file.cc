#include "jobs/job_file.h"

#include <algorithm>
#include <filesystem>
#include <regex>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/config/environment.h"
#include "common/config/yaml_file.h"
#include "jobs/job_fields.h"

namespace egeria::jobs {
namespace {

using config::YamlEntry;

// Where each key of the file stands, so that checks of several fields can name a line.
using Lines = std::map<std::string, int>;

// All errors of this file. Their texts are sentences without a full stop, and say what to do.
template <typename... Args>
absl::Status Bad(const Args&... message) {
  return absl::InvalidArgumentError(absl::StrCat(message...));
}

bool HasControlCharacter(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
}

absl::Status CheckText(const Field& field, const std::string& text) {
  if (HasControlCharacter(text)) return Bad("it has a line break or another control character; write it on one line");
  const auto& choices = field.choices;
  if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end()) {
    const std::string nearest = config::Nearest(text, choices);
    return Bad("'", text, "' is not one of ", absl::StrJoin(choices, ", "),
               nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?"));
  }
  if (!field.pattern.empty() && !std::regex_match(text, std::regex(field.pattern, std::regex::extended))) {
    return Bad("'", text, "' is not ", field.pattern_words, "; choose another");
  }
  return absl::OkStatus();
}

absl::Status CheckNumber(const Field& field, const config::Words& words) {
  int64_t number = 0;
  EGERIA_RETURN_IF_ERROR(config::Parse(words, &number));
  if (number >= field.lowest && number <= field.highest) return absl::OkStatus();
  return Bad("it must be between ", field.lowest, " and ", field.highest, ", and is ", number);
}

absl::Status SetField(const Field& field, const std::string& folder, const YamlEntry& entry) {
  config::Words words = entry.words;
  const bool takes_list = field.kind == Field::Kind::kTexts;
  if (entry.is_list && !takes_list) return Bad("it takes one value, not a list");
  if (!entry.is_list && takes_list) return Bad("it takes a list; write [", absl::StrJoin(words, ", "), "]");
  if (field.kind == Field::Kind::kWhole) EGERIA_RETURN_IF_ERROR(CheckNumber(field, words));
  for (std::string& word : words) {
    if (field.kind == Field::Kind::kText || takes_list) EGERIA_RETURN_IF_ERROR(CheckText(field, word));
    if (!field.is_folder) continue;
    if (word.empty()) return Bad("it is empty; name a folder, or leave the key out");
    word = (std::filesystem::path(folder) / word).lexically_normal().string();
    if (word.size() > 1 && word.back() == '/') word.pop_back();
  }
  return field.set(words);
}

absl::Status SetMapEntry(const Field& field, const YamlEntry& entry) {
  if (entry.key == field.key) return Bad("it takes names with values; write them as NAME: VALUE below it");
  if (entry.is_list) return Bad("it takes one value, not a list");
  const std::string name = entry.key.substr(field.key.size() + 1);
  EGERIA_RETURN_IF_ERROR(CheckText(field, name));
  EGERIA_RETURN_IF_ERROR(CheckText(Field(), entry.words[0]));
  (*field.map)[name] = entry.words[0];
  return absl::OkStatus();
}

const Field* FindField(const std::vector<Field>& fields, const std::string& key) {
  for (const Field& field : fields) {
    if (field.key == key || (field.map != nullptr && absl::StartsWith(key, field.key + "."))) return &field;
  }
  return nullptr;
}

absl::Status UnknownKey(const std::vector<Field>& fields, const std::string& key) {
  std::vector<std::string> known;
  for (const Field& field : fields) known.push_back(field.key);
  for (const auto& [section, help] : SectionHelp()) {
    if (key == section) return Bad("it takes keys with values; write them below it");
  }
  const std::string nearest = config::Nearest(key, known);
  return Bad("this key is not known; ", nearest.empty() ? "docs/reference/job-file.md lists all keys"
                                                        : absl::StrCat("did you mean '", nearest, "'?"));
}

absl::Status Missing(const std::string& key, const std::string& example) {
  return Bad(key, ": it is missing; add it, such as ", example);
}

// A placeholder in the training's words stands for a folder, which must be given.
absl::Status CheckPlaceholders(const JobFile& job) {
  std::vector<std::string> words = job.application.command;
  words.insert(words.end(), job.application.arguments.begin(), job.application.arguments.end());
  const std::string text = absl::StrJoin(words, " ");
  if (absl::StrContains(text, "{data}") && job.data.folders.empty()) {
    return Bad("data.folders: the arguments have {data}, but there is no folder; list one");
  }
  if (absl::StrContains(text, "{checkpoints}") && job.checkpoints.folder.empty()) {
    return Bad("checkpoints.folder: the arguments have {checkpoints}, but there is no folder; give one");
  }
  return absl::OkStatus();
}

// Checks what cannot be said of one field alone. The messages begin with the key that they are about.
absl::Status CheckTogether(const JobFile& job) {
  if (job.name.empty()) return Missing("name", "'name: digits'");
  if (job.application.command.empty() == job.application.script.empty()) {
    return Bad(job.application.script.empty() ? "application" : "application.script",
               ": exactly one of application.command and application.script says what to run; ",
               job.application.script.empty() ? "add one" : "remove one");
  }
  if (job.output.folder.empty()) return Missing("output.folder", "'output: {folder: out}'");
  const auto& [folder, signal, before, restarts] = job.checkpoints;
  const absl::Duration limit = job.resources.time_limit;
  if (limit < absl::ZeroDuration() || (limit > absl::ZeroDuration() && limit < absl::Minutes(1))) {
    return Bad("resources.time_limit: it is ", absl::FormatDuration(limit), "; give one minute or more, or 0");
  }
  if (before < absl::Seconds(1)) return Bad("checkpoints.signal_before: give one second or more");
  if (signal != "none" && limit > absl::ZeroDuration() && before >= limit) {
    return Bad("checkpoints.signal_before: it is ", absl::FormatDuration(before), ", and the time limit is ",
               absl::FormatDuration(limit), "; give less than that");
  }
  if (job.data.stage && job.data.folders.empty()) {
    return Bad("data.stage: there is nothing to copy; list data.folders, or remove it");
  }
  const std::string& cache = job.egeria.cache;
  if (cache != "default" && cache != "none" && !absl::StartsWith(cache, "/")) {
    return Bad("egeria.cache: '", cache, "' is not default, none or an absolute folder; a folder begins with /");
  }
  if (cache == "none" && job.egeria.cache_quota.value > 0) {
    return Bad("egeria.cache_quota: there is no cache to which it applies; remove it, or egeria.cache");
  }
  const std::string address = job.controller_address();
  if (!address.empty() &&
      !std::regex_match(address, std::regex("unix:/.+|[^:/ ]+:[0-9]{1,5}|\\[[0-9a-fA-F:]+\\]:[0-9]{1,5}"))) {
    return Bad("egeria.controller: '", address, "' is not own, none, unix:/path or host:port");
  }
  return CheckPlaceholders(job);
}

// The line of the key with which `message` begins, or of its section.
int LineOf(const Lines& lines, absl::string_view message) {
  const std::string key(message.substr(0, message.find(':')));
  if (const auto found = lines.find(key); found != lines.end()) return found->second;
  const auto inside = lines.lower_bound(key + ".");
  return inside != lines.end() && absl::StartsWith(inside->first, key + ".") ? inside->second : 1;
}

}  // namespace

absl::StatusOr<JobFile> ReadJobFile(const std::string& path) {
  EGERIA_ASSIGN_OR_RETURN(const std::vector<YamlEntry> entries, config::ReadYamlFile(path));
  const std::string folder = std::filesystem::absolute(path).parent_path().string();
  JobFile job;
  const std::vector<Field> fields = JobFields(&job);
  Lines lines;
  for (const YamlEntry& entry : entries) {
    lines[entry.key] = entry.line;
    const Field* field = FindField(fields, entry.key);
    const absl::Status set = field == nullptr        ? UnknownKey(fields, entry.key)
                             : field->map != nullptr ? SetMapEntry(*field, entry)
                                                     : SetField(*field, folder, entry);
    if (!set.ok()) return Bad(path, ":", entry.line, ": ", entry.key, ": ", set.message());
  }
  if (const absl::Status together = CheckTogether(job); !together.ok()) {
    return Bad(path, ":", LineOf(lines, together.message()), ": ", together.message());
  }
  if (job.application.folder == ".") job.application.folder = folder;
  return job;
}

}  // namespace egeria::jobs

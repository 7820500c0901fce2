#include "common/config/option_set.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <ostream>
#include <sstream>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/config/yaml_file.h"
#include "yaml-cpp/yaml.h"

namespace egeria::config {
namespace {

absl::Status Wrong(const std::string& where, const absl::Status& what) {
  return absl::Status(what.code(), absl::StrCat(where, ": ", std::string(what.message())));
}

absl::Status Unknown(const std::string& what, const std::string& name, const std::vector<std::string>& known) {
  const std::string nearest = Nearest(name, known);
  return absl::InvalidArgumentError(absl::StrCat(
      what, " '", name, "' is not known", nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?")));
}

Words SplitList(const std::string& text) {
  Words words;
  for (absl::string_view word : absl::StrSplit(text, ',')) {
    words.emplace_back(absl::StripAsciiWhitespace(word));
  }
  if (words.size() == 1 && words[0].empty()) words.clear();
  return words;
}

// A word as YAML reads it back: in quotes where it would otherwise be something else than this text.
std::string YamlWord(const std::string& word) {
  YAML::Emitter emitter;
  emitter << word;
  return emitter.c_str();
}

}  // namespace

ValueCheck<std::string> OneOf(std::vector<std::string> values) {
  return [values = std::move(values)](const std::string& value) -> std::string {
    if (std::find(values.begin(), values.end(), value) != values.end()) return "";
    return absl::StrCat("'", value, "' is not one of ", absl::StrJoin(values, ", "));
  };
}

ValueCheck<std::vector<std::string>> EachOneOf(std::vector<std::string> values) {
  return [check = OneOf(std::move(values))](const std::vector<std::string>& chosen) -> std::string {
    for (const std::string& value : chosen) {
      if (const std::string wrong = check(value); !wrong.empty()) return wrong;
    }
    return "";
  };
}

// The command line as it was given, before any of it is applied.
struct OptionSet::Flags {
  std::string config;
  bool print_config = false;
  bool check_config = false;
  std::vector<std::pair<size_t, Words>> values;  // by index into options_
};

OptionSet::OptionSet(std::string program, std::string environment_prefix, std::string description, std::string version)
    : program_(std::move(program)),
      environment_prefix_(std::move(environment_prefix)),
      description_(std::move(description)),
      version_(std::move(version)) {}

std::string OptionSet::FlagName(const std::string& key) {
  return absl::StrCat("--", absl::StrReplaceAll(key, {{".", "-"}, {"_", "-"}}));
}

std::string OptionSet::EnvironmentName(const std::string& key) const {
  return absl::StrCat(environment_prefix_, absl::AsciiStrToUpper(absl::StrReplaceAll(key, {{".", "_"}})));
}

OptionSet::Option* OptionSet::Find(const std::string& key) {
  auto found = std::find_if(options_.begin(), options_.end(), [&](const Option& o) { return o.key == key; });
  return found == options_.end() ? nullptr : &*found;
}

absl::StatusOr<OptionSet::Outcome> OptionSet::Load(int argc, const char* const* argv, const Environment& environment,
                                                   std::ostream& out) {
  Flags flags;
  EGERIA_ASSIGN_OR_RETURN(const Outcome outcome, ParseFlags(argc, argv, &flags, out));
  if (outcome == Outcome::kExit) return outcome;
  if (flags.config.empty()) {
    auto named = environment.find(absl::StrCat(environment_prefix_, "CONFIG"));
    if (named != environment.end()) flags.config = named->second;
  }
  if (!flags.config.empty()) EGERIA_RETURN_IF_ERROR(ApplyFile(flags.config));
  EGERIA_RETURN_IF_ERROR(ApplyEnvironment(environment));
  for (const auto& [index, words] : flags.values) {
    if (absl::Status set = options_[index].set(words); !set.ok()) return Wrong(FlagName(options_[index].key), set);
  }
  for (const auto& check : checks_) EGERIA_RETURN_IF_ERROR(check());
  if (flags.print_config) out << ToYaml();
  return flags.print_config || flags.check_config ? Outcome::kExit : Outcome::kRun;
}

absl::StatusOr<OptionSet::Outcome> OptionSet::ParseFlags(int argc, const char* const* argv, Flags* flags,
                                                         std::ostream& out) const {
  CLI::App app(absl::StrCat(program_, ": ", description_), program_);
  app.allow_extras();  // our own error for an unknown flag names the nearest one
  app.add_option("--config", flags->config,
                 absl::StrCat("YAML file with the options below (also ", environment_prefix_, "CONFIG)"));
  app.add_flag("--print-config", flags->print_config, "Print the effective options as YAML and exit");
  app.add_flag("--check-config", flags->check_config, "Check the options and exit with 0 or 2");
  if (!version_.empty()) app.set_version_flag("--version", absl::StrCat(program_, " ", version_));
  std::vector<Words> given(options_.size());
  std::vector<std::string> switches(options_.size());
  std::vector<CLI::Option*> handles;
  std::vector<std::string> known = {"--config", "--print-config", "--check-config", "--help", "--version"};
  for (size_t i = 0; i < options_.size(); ++i) {
    const Option& option = options_[i];
    const std::string name = FlagName(option.key);
    known.push_back(name);
    const std::string help = absl::StrCat(option.help, " [", absl::StrJoin(option.format(), ","), "]");
    if (option.is_switch) {
      handles.push_back(app.add_flag(name, switches[i], help));
    } else {
      handles.push_back(app.add_option(name, given[i], help)->allow_extra_args(false));
      handles.back()->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    app.exit(success, out, out);
    return Outcome::kExit;
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (const std::vector<std::string> left = app.remaining(); !left.empty()) {
    return Unknown("argument", left[0].substr(0, left[0].find('=')), known);
  }
  for (size_t i = 0; i < options_.size(); ++i) {
    if (handles[i]->count() == 0) continue;
    if (options_[i].is_switch) {
      flags->values.emplace_back(i, Words{switches[i]});
    } else if (options_[i].is_list) {
      flags->values.emplace_back(i, SplitList(absl::StrJoin(given[i], ",")));
    } else {
      flags->values.emplace_back(i, Words{given[i].back()});
    }
  }
  return Outcome::kRun;
}

absl::Status OptionSet::ApplyFile(const std::string& path) {
  EGERIA_ASSIGN_OR_RETURN(const std::vector<YamlEntry> entries, ReadYamlFile(path));
  std::vector<std::string> known;
  for (const Option& option : options_) known.push_back(option.key);
  for (const YamlEntry& entry : entries) {
    const std::string where = absl::StrCat(path, ":", entry.line);
    Option* option = Find(entry.key);
    if (option == nullptr) return Wrong(where, Unknown("key", entry.key, known));
    if (entry.is_list && !option->is_list) {
      return Wrong(where, absl::InvalidArgumentError(absl::StrCat("'", entry.key, "' takes one value, not a list")));
    }
    if (absl::Status set = option->set(entry.words); !set.ok()) {
      return Wrong(absl::StrCat(where, ": ", entry.key), set);
    }
  }
  return absl::OkStatus();
}

absl::Status OptionSet::ApplyEnvironment(const Environment& environment) {
  std::map<std::string, Option*> by_name;
  std::vector<std::string> known = {absl::StrCat(environment_prefix_, "CONFIG")};
  for (Option& option : options_) {
    by_name[EnvironmentName(option.key)] = &option;
    known.push_back(EnvironmentName(option.key));
  }
  for (const auto& [name, value] : environment) {
    if (!absl::StartsWith(name, environment_prefix_) || name == known[0] || others_.contains(name)) continue;
    auto found = by_name.find(name);
    if (found == by_name.end()) return Unknown("environment variable", name, known);
    Option& option = *found->second;
    if (absl::Status set = option.set(option.is_list ? SplitList(value) : Words{value}); !set.ok()) {
      return Wrong(absl::StrCat("environment variable ", name), set);
    }
  }
  return absl::OkStatus();
}

std::string OptionSet::ToYaml() const {
  std::string yaml;
  std::string section;
  for (const Option& option : options_) {
    const size_t dot = option.key.find('.');
    const std::string in = dot == std::string::npos ? "" : option.key.substr(0, dot);
    const std::string indent = in.empty() ? "" : "  ";
    if (in != section) {
      section = in;
      if (!in.empty()) absl::StrAppend(&yaml, "\n", in, ":\n");
    }
    Words words = option.format();
    for (std::string& word : words) word = YamlWord(word);
    const std::string value = option.is_list ? absl::StrCat("[", absl::StrJoin(words, ", "), "]") : words[0];
    absl::StrAppend(&yaml, indent, "# ", option.help, "\n", indent,
                    in.empty() ? option.key : option.key.substr(dot + 1), ": ", value, "\n");
  }
  return yaml;
}

}  // namespace egeria::config

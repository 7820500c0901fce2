#ifndef EGERIA_COMMON_CONFIG_OPTION_SET_H_
#define EGERIA_COMMON_CONFIG_OPTION_SET_H_

#include <functional>
#include <iosfwd>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/config/environment.h"
#include "common/config/values.h"

namespace egeria::config {

// Returns what is wrong with a value, or "".
template <typename T>
using ValueCheck = std::function<std::string(const T&)>;

// Fills a program's struct of options from, each overruling the ones before: the struct's own values, a YAML
// file, the environment, command line flags. An option has one key, from which its names follow:
//
//   key "reference.threads", environment prefix "EGERIA_CONTROLLER_"
//   YAML        reference: {threads: 1}
//   environment EGERIA_CONTROLLER_REFERENCE_THREADS=1
//   flag        --reference-threads 1
//
// Lists are sequences in YAML, and separated by commas elsewhere; a flag may also be repeated. A key, a
// variable with the prefix or a flag that is not known is an error which names the nearest one that is.
//
// Beside the options every program has --config FILE (or <prefix>CONFIG), --print-config (the effective
// options as YAML that --config reads back), --check-config, --help and --version.
//
// Example:
//   Options options;
//   OptionSet set("egeria-controller", "EGERIA_CONTROLLER_", "decides what to freeze");
//   set.Add("log_level", &options.log_level, "lowest level that is logged", OneOf({"info", "error"}));
//   auto outcome = set.Load(argc, argv, ProcessEnvironment(), std::cout);
//
// Thread-compatible. The variables that the added pointers point to must outlive it.
class OptionSet {
 public:
  enum class Outcome { kRun, kExit };

  OptionSet(std::string program, std::string environment_prefix, std::string description, std::string version = "");

  template <typename T>
  OptionSet& Add(const std::string& key, T* value, const std::string& help, ValueCheck<T> check = nullptr) {
    Option option;
    option.key = key;
    option.help = help;
    option.is_list = kIsList<T>;
    option.is_switch = std::is_same_v<T, bool>;
    option.format = [value] { return Format(*value); };
    option.set = [value, check](const Words& words) -> absl::Status {
      T parsed = *value;
      EGERIA_RETURN_IF_ERROR(Parse(words, &parsed));
      if (const std::string wrong = check ? check(parsed) : ""; !wrong.empty()) {
        return absl::InvalidArgumentError(wrong);
      }
      *value = std::move(parsed);
      return absl::OkStatus();
    };
    options_.push_back(std::move(option));
    return *this;
  }

  // Leaves an environment variable alone that begins as the program's own do, but belongs to another program.
  OptionSet& LeaveToOthers(const std::string& variable) {
    others_.insert(variable);
    return *this;
  }

  // A check of the options together, made after all of them are set.
  void AddCheck(std::function<absl::Status()> check) { checks_.push_back(std::move(check)); }

  // kExit: the user asked for help, the version, the options or their check; it has been printed to `out`.
  // Errors: INVALID_ARGUMENT naming the file and line, the variable or the flag, and what is wrong there;
  // NOT_FOUND a file that cannot be read.
  absl::StatusOr<Outcome> Load(int argc, const char* const* argv, const Environment& environment, std::ostream& out);

  // The options as a YAML file with their help as comments.
  std::string ToYaml() const;

 private:
  struct Option {
    std::string key;
    std::string help;
    bool is_list = false;
    bool is_switch = false;
    std::function<Words()> format;
    std::function<absl::Status(const Words&)> set;
  };
  struct Flags;

  absl::StatusOr<Outcome> ParseFlags(int argc, const char* const* argv, Flags* flags, std::ostream& out) const;
  absl::Status ApplyFile(const std::string& path);
  absl::Status ApplyEnvironment(const Environment& environment);
  Option* Find(const std::string& key);
  std::string EnvironmentName(const std::string& key) const;
  static std::string FlagName(const std::string& key);

  const std::string program_, environment_prefix_, description_, version_;
  std::vector<Option> options_;
  std::set<std::string> others_;  // environment variables
  std::vector<std::function<absl::Status()>> checks_;
};

// Checks for OptionSet::Add.
template <typename T>
ValueCheck<T> InRange(T lowest, T highest) {
  return [lowest, highest](const T& value) -> std::string {
    if (value >= lowest && value <= highest) return "";
    return absl::StrCat("must be between ", Format(lowest)[0], " and ", Format(highest)[0]);
  };
}
ValueCheck<std::string> OneOf(std::vector<std::string> values);
ValueCheck<std::vector<std::string>> EachOneOf(std::vector<std::string> values);

}  // namespace egeria::config

#endif  // EGERIA_COMMON_CONFIG_OPTION_SET_H_

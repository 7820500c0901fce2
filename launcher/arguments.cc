#include "launcher/arguments.h"

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/config/values.h"
#include "common/rpc/address.h"
#include "worker/cache/entry/cache_folder.h"

namespace egeria::run {
namespace {

constexpr absl::string_view kPrefix = "--egeria-";

using Setter = std::function<bool(const std::string& value, Arguments* arguments)>;

Setter Into(std::string Arguments::* field) {
  return [field](const std::string& value, Arguments* arguments) {
    arguments->*field = value;
    return !value.empty();
  };
}

const std::map<std::string, Setter>& Options() {
  static const auto& options = *new std::map<std::string, Setter>{
      {"--egeria-controller", Into(&Arguments::controller)},
      {"--egeria-cache",
       [](const std::string& value, Arguments* arguments) {
         arguments->cache = value;
         return true;
       }},
      {"--egeria-beside", Into(&Arguments::beside)},
      {"--egeria-job-id", Into(&Arguments::job_id)},
      {"--egeria-name", Into(&Arguments::name)},
      {"--egeria-budget",
       [](const std::string& value, Arguments* arguments) {
         arguments->budget = value;
         config::Part part;
         return config::Parse({value}, &part).ok() && part.value > 0 && part.value < 1;
       }},
      {"--egeria-config", Into(&Arguments::config)},
      {"--egeria-state-dir", Into(&Arguments::state_dir)},
      {"--egeria-metrics", Into(&Arguments::metrics)},
      {"--egeria-ready-timeout",
       [](const std::string& value, Arguments* arguments) {
         double seconds = 0;
         if (!absl::SimpleAtod(value, &seconds) || !(seconds > 0 && seconds <= 3600)) return false;
         arguments->ready_timeout = absl::Seconds(seconds);
         return true;
       }},
  };
  return options;
}

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string OptionNames() {
  std::vector<std::string> names;
  for (const auto& [name, setter] : Options()) names.push_back(name);
  return absl::StrJoin(names, ", ");
}

// Takes the option at `at` and its value; moves `at` to the argument after them.
absl::Status TakeOption(const std::vector<std::string>& all, size_t* at, Arguments* arguments) {
  const std::string& text = all[(*at)++];
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const auto option = Options().find(name);
  if (option == Options().end()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no option ", name, "; there are ", OptionNames()));
  }
  std::string value;
  if (equals != std::string::npos) {
    value = text.substr(equals + 1);
  } else if (*at < all.size()) {
    value = all[(*at)++];
  } else {
    return absl::InvalidArgumentError(absl::StrCat(name, " needs a value"));
  }
  if (!option->second(value, arguments)) {
    return absl::InvalidArgumentError(absl::StrCat("'", value, "' is no value for ", name));
  }
  return absl::OkStatus();
}

absl::Status CheckValues(const Arguments& arguments) {
  if (!arguments.job_id.empty() && !JobId(arguments.job_id).IsValid()) {
    return absl::InvalidArgumentError(absl::StrCat("the job id '", arguments.job_id,
                                                   "' (--egeria-job-id, EGERIA_JOB_ID) is not a UUID in lower case"));
  }
  if (!arguments.controller.empty() && arguments.controller != "none") {
    const auto address = rpc::ParseAddress(arguments.controller);
    if (!address.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the controller's ", address.status().message(), ", or 'none' to train without one"));
    }
  }
  return absl::OkStatus();
}

absl::Status ResolveCache(std::optional<std::string>* cache) {
  if (!cache->has_value() || (*cache)->empty() || **cache == "none") return absl::OkStatus();
  auto address = rpc::ParseAddress(**cache);
  if (address.ok() && !address->is_unix()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a cache serves its own node only: give a folder, unix:/path or none "
                     "instead of '",
                     **cache, "' (--egeria-cache, EGERIA_CACHE)"));
  }
  if (!absl::StartsWith(**cache, "unix:")) {
    std::error_code ignored;
    *cache = std::filesystem::absolute(**cache, ignored).lexically_normal().string();
    address = rpc::ParseAddress(cache::DefaultAddress(**cache));
  }
  if (!address.ok()) return absl::InvalidArgumentError(absl::StrCat("the cache's ", address.status().message()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& arguments) {
  Arguments parsed;
  parsed.controller = FromEnvironment("EGERIA_CONTROLLER");
  if (std::getenv("EGERIA_CACHE") != nullptr) parsed.cache = FromEnvironment("EGERIA_CACHE");
  parsed.job_id = FromEnvironment("EGERIA_JOB_ID");
  size_t at = 0;
  while (at < arguments.size() && absl::StartsWith(arguments[at], kPrefix)) {
    EGERIA_RETURN_IF_ERROR(TakeOption(arguments, &at, &parsed));
  }
  parsed.torchrun.assign(arguments.begin() + static_cast<std::ptrdiff_t>(at), arguments.end());
  if (parsed.torchrun.empty() == parsed.beside.empty()) {
    return absl::InvalidArgumentError("nothing to run, or --egeria-beside with something; see egeria-run --help");
  }
  const std::string first = parsed.torchrun.empty() ? "" : parsed.torchrun[0];
  parsed.help = first == "--help" || first == "-h";
  parsed.version = first == "--version";  // torchrun has no such option
  if (parsed.help || parsed.version) return parsed;
  EGERIA_RETURN_IF_ERROR(CheckValues(parsed));
  EGERIA_RETURN_IF_ERROR(ResolveCache(&parsed.cache));
  return parsed;
}

std::vector<std::string> MisplacedOptions(const std::vector<std::string>& torchrun) {
  std::vector<std::string> misplaced;
  for (const std::string& argument : torchrun) {
    if (argument == "--") break;
    const std::string name = argument.substr(0, argument.find('='));
    if (Options().contains(name)) misplaced.push_back(name);
  }
  return misplaced;
}

bool RunsProgram(const std::vector<std::string>& torchrun) {
  for (const std::string& argument : torchrun) {
    if (argument == "--no-python" || argument == "--no_python") return true;
    if (argument == "--") break;
  }
  return false;
}

bool SpansNodes(const std::vector<std::string>& torchrun) {
  for (size_t i = 0; i < torchrun.size() && torchrun[i] != "--"; ++i) {
    absl::string_view value = torchrun[i];
    if (value == "--nnodes" && i + 1 < torchrun.size()) {
      value = torchrun[i + 1];
    } else if (!absl::ConsumePrefix(&value, "--nnodes=")) {
      continue;
    }
    return value != "1" && value != "1:1";
  }
  return false;
}

const char* HelpText() {
  return R"(egeria-run: torchrun with an Egeria controller and cache beside it

  egeria-run [--egeria-OPTION VALUE]... TORCHRUN'S ARGUMENTS

Runs torchrun with its own arguments untouched. Unless a controller is given, starts one for the time of the
job, and an egeria-cache unless one runs on this node; training runs whether they come up or not. Ends with
torchrun's exit code (128 + N after signal N).

  egeria-run --nproc-per-node 2 train.py --epochs 10
  egeria-run --nproc-per-node 2 --no-python egeria-train --task digits

Options, which come before torchrun's:
  --egeria-controller ADDRESS   use this controller: unix:/path or host:port; none: train without one
                                (default: $EGERIA_CONTROLLER, else start one)
  --egeria-cache DIR|ADDRESS|none  use the egeria-cache of this folder, and start it if it does not run; or one
                                at unix:/path, or none (default: $EGERIA_CACHE, else $EGERIA_CACHE_FOLDER, else
                                the user's cache folder). It ends with the last job that uses it, and is started
                                again, three times, where it ends before; its options
                                are taken from the environment (EGERIA_CACHE_QUOTA, ...)
  --egeria-job-id UUID          the job's id (default: $EGERIA_JOB_ID, else a new one); the same id again goes
                                on with the same job
  --egeria-name NAME            the job's name for people and metrics (default: $EGERIA_TRAINING_JOB)
  --egeria-budget PART          part of the time to save, such as 20%; no more freezes than that takes
                                (default: $EGERIA_BUDGET)
  --egeria-config FILE          configuration of the controller that is started
  --egeria-state-dir DIR        folder of its journal (default: $EGERIA_CONTROLLER_STATE_DIR, else a temporary
                                folder, removed at the end)
  --egeria-metrics HOST:PORT    where it serves /metrics (default: where the configuration says, else nowhere)
  --egeria-ready-timeout SECONDS  how long to wait for it before training starts anyway (default: 10)
  --egeria-beside FOLDER        for programs, as the package egeria: run nothing, but serve the process that started
                                this one, until standard input ends. The controller's socket is in FOLDER, which is
                                removed at the end. The line "cache" on standard input asks for a cache

The training processes find EGERIA_CONTROLLER, EGERIA_CACHE, EGERIA_JOB_ID, EGERIA_JOB_SECRET and EGERIA_NODE
in their environment.
torchrun is taken from $EGERIA_TORCHRUN, this program's folder, $VIRTUAL_ENV/bin or PATH.
With several nodes, start one egeria-controller yourself and give its address to all of them.

`torchrun --help` explains torchrun's arguments.
)";
}

}  // namespace egeria::run

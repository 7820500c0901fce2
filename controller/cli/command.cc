#include "controller/cli/command.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/version.h"

namespace egeria::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

}  // namespace

int Run(int argc, const char* const* argv, const std::vector<AddCommands>& commands, Streams streams) {
  CLI::App app("Egeria: looks at training jobs and at what freezes them.", "egeria");
  app.require_subcommand(1);
  app.set_version_flag("--version", absl::StrCat("egeria ", Version()));
  Action action;
  const Select select = [&action](Action selected) { action = std::move(selected); };
  for (const AddCommands add : commands) add(app, select);
  std::vector<const char*> words(argv, argv + argc);
  // CLI11 would take what follows in `egeria trial -- python train.py` for words of `egeria` itself.
  if (words.size() > 2 && std::string_view(words[2]) == "--") words.erase(words.begin() + 2);
  try {
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::ParseError& error) {
    return app.exit(error, streams.out, streams.err) == 0 ? 0 : kBadInput;  // 0: --help, --version
  }
  if (!action) return 0;
  const absl::Status status = action(streams);
  streams.out.flush();
  if (status.ok()) return 0;
  streams.err << "egeria " << app.get_subcommands().front()->get_name() << ": " << std::string(status.message())
              << "\n";
  return absl::IsInvalidArgument(status) ? kBadInput : kFailed;
}

}  // namespace egeria::cli

// egeria-run: torchrun with an Egeria controller and cache beside it. HelpText() in arguments.cc says how.
#include <cstdio>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/base/version.h"
#include "common/config/environment.h"
#include "launcher/arguments.h"
#include "launcher/launcher.h"

int main(int argc, char** argv) {
  egeria::ConfigureLogging("egeria-run", egeria::LogLevel::kInfo);
  const auto arguments = egeria::run::ParseArguments(std::vector<std::string>(argv + 1, argv + argc));
  if (!arguments.ok()) {
    std::fprintf(stderr, "egeria-run: %s\n", std::string(arguments.status().message()).c_str());
    return 2;
  }
  if (arguments->help) {
    std::fputs(egeria::run::HelpText(), stdout);
    return 0;
  }
  if (arguments->version) {
    std::printf("egeria-run %s\n", egeria::Version());
    return 0;
  }
  if (!arguments->beside.empty()) return egeria::run::Serve(*arguments);
  egeria::config::WarnOfUnknownVariables();
  return egeria::run::Launch(*arguments);
}

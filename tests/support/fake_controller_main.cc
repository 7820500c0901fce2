// A fake controller in a process of its own, for tests that stop or kill one, and for those in Python: listens on the
// Unix socket that is its argument, prints "ready", and answers until its standard input is closed. A line there is a
// directive for all ranks, in protobuf's JSON; {"plans": [...]} in it are plans. At the end it prints what it was told,
// one JSON object a line: {"registration": ...} of each rank, {"gradients": ...} of each reading.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "google/protobuf/util/json_util.h"
#include "tests/support/fake_controller.h"

namespace {

void Print(const char* what, const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json, options).ok()) return;
  std::printf("{\"%s\": %s}\n", what, json.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  egeria::testing::FakeController controller(argv[1]);
  const absl::Status status = controller.Start();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    egeria::v1::Directive directive;
    if (!google::protobuf::util::JsonStringToMessage(line, &directive).ok()) {
      std::fprintf(stderr, "no directive: %s\n", line.c_str());
      return 1;
    }
    const std::vector<egeria::v1::Plan> plans(directive.plans().begin(), directive.plans().end());
    directive.clear_plans();
    if (!plans.empty()) controller.SetPlans(plans);
    controller.SetDirective(directive);
  }
  const egeria::testing::FakeControllerRecord record = controller.record();
  for (egeria::v1::RegisterJobRequest registration : record.registrations) {
    for (egeria::v1::LayerModule& module : *registration.mutable_modules()) module.clear_graph();
    Print("registration", registration);
  }
  for (const egeria::v1::GradientReading& reading : record.gradients) Print("gradients", reading);
  return 0;
}

// A fake controller in a process of its own, for tests that stop or kill one: listens on the Unix socket that
// is its argument, prints "ready", and answers until its standard input is closed.
#include <cstdio>

#include "tests/support/fake_controller.h"

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
  while (std::getchar() != EOF) {
  }
  return 0;
}

#include "controller/cli/bench_command.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "controller/cli/command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace egeria::cli {
namespace {

using ::egeria::testing::TempFolder;
using ::testing::HasSubstr;

// `egeria bench digits --seeds 0,1` with these variables; what it prints on its error stream.
std::string BenchErrors(const std::string& source, const std::string& python, int* code) {
  setenv("EGERIA_SOURCE", source.c_str(), 1);
  setenv("EGERIA_PYTHON", python.c_str(), 1);
  const std::vector<const char*> words = {"egeria", "bench", "digits", "--seeds", "0,1"};
  std::istringstream in;
  std::ostringstream out, err;
  *code = cli::Run(static_cast<int>(words.size()), words.data(), {AddBenchCommand}, {in, out, err});
  unsetenv("EGERIA_SOURCE");
  unsetenv("EGERIA_PYTHON");
  return err.str();
}

// A folder with a benchmark's program in it, as a checkout has it.
void MakeCheckout(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder / "bench");
  std::ofstream(folder / "bench/main.py") << "# nothing\n";
}

TEST(BenchCommand, SaysThatTheNamedFolderIsNoCheckout) {
  int code = 0;
  EXPECT_THAT(BenchErrors("/no/such/folder", "/bin/echo", &code),
              HasSubstr("EGERIA_SOURCE is '/no/such/folder', which has no bench/main.py"));
  EXPECT_EQ(code, 1);
}

TEST(BenchCommand, SaysWhatToDoWhereThePackageIsMissing) {
  TempFolder folder;
  MakeCheckout(folder.path());
  int code = 0;
  EXPECT_THAT(BenchErrors(folder.path(), "/bin/false", &code), HasSubstr("/bin/false has no package egeria"));
  EXPECT_EQ(code, 1);
}

TEST(BenchCommand, HandsItsArgumentsToTheBenchmarksOfTheCheckout) {
  TempFolder folder;
  MakeCheckout(folder.path());
  // In a child process, since the command becomes another program: here one that prints what it is told.
  EXPECT_EXIT(
      {
        int code = 0;
        dup2(2, 1);
        BenchErrors(folder.path(), "/bin/echo", &code);
        std::exit(99);  // not reached
      },
      ::testing::ExitedWithCode(0), "/bench/main.py digits --seeds 0,1");
}

}  // namespace
}  // namespace egeria::cli

#include "controller/cli/python_commands.h"

#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "controller/cli/command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::cli {
namespace {

using ::testing::HasSubstr;

// Runs `egeria COMMAND ARGUMENTS` with $EGERIA_PYTHON set to `python`. Returns what it prints on its error
// stream.
std::string ErrorsOf(const char* command, const std::string& python, int* code,
                     const std::vector<const char*>& arguments = {"model.py:build", "--json"}) {
  setenv("EGERIA_PYTHON", python.c_str(), 1);
  std::vector<const char*> words = {"egeria", command};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::istringstream in;
  std::ostringstream out, err;
  *code = cli::Run(static_cast<int>(words.size()), words.data(), {AddPythonCommands}, {in, out, err});
  unsetenv("EGERIA_PYTHON");
  return err.str();
}

TEST(PythonCommands, SaysThatTheGivenPythonIsNoProgram) {
  int code = 0;
  EXPECT_THAT(ErrorsOf("doctor", "/no/such/python", &code), HasSubstr("'/no/such/python', which is no program"));
  EXPECT_EQ(code, 1);
}

TEST(PythonCommands, SaysWhatToDoWhereThePackageIsMissing) {
  int code = 0;
  const std::string errors = ErrorsOf("doctor", "/bin/false", &code);
  EXPECT_THAT(errors, HasSubstr("/bin/false has no package egeria"));
  EXPECT_THAT(errors, HasSubstr("pip install ."));
  EXPECT_EQ(code, 1);
}

// Expects `egeria COMMAND ARGUMENTS` to become Python with these words. It does so in a child process, where Python is
// a program that prints what it is told.
void ExpectBecomes(const char* command, const std::vector<const char*>& arguments, const std::string& words) {
  EXPECT_EXIT(
      {
        int code = 0;
        dup2(2, 1);
        ErrorsOf(command, "/bin/echo", &code, arguments);
        std::exit(99);  // not reached
      },
      ::testing::ExitedWithCode(0), words);
}

TEST(PythonCommands, HandsItsArgumentsToPython) {
  ExpectBecomes("doctor", {"model.py:build", "--json"}, "-m egeria.doctor model.py:build --json");
  ExpectBecomes("trial", {"model.py:build", "--json"}, "-m egeria.trial model.py:build --json");
  ExpectBecomes("top", {"model.py:build", "--json"}, "-m egeria.monitor.top model.py:build --json");
}

TEST(PythonCommands, HandsOnACommandBehindTwoDashes) {
  const std::string words = "-m egeria.trial python train.py --steps 5 -- x";
  ExpectBecomes("trial", {"--", "python", "train.py", "--steps", "5", "--", "x"}, words);
  ExpectBecomes("trial", {"python", "train.py", "--steps", "5", "--", "x"}, words);
}

}  // namespace
}  // namespace egeria::cli

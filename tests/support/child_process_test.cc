#include "tests/support/child_process.h"

#include <signal.h>

#include "gtest/gtest.h"

namespace egeria::testing {
namespace {

TEST(ChildProcess, GivesOutputAndExitCode) {
  auto child = ChildProcess::Start({"/bin/sh", "-c", "echo one; echo \"$A$B\"; exit 7"}, {"A=two", "B=!"});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(child->ReadLine(), "one");
  EXPECT_EQ(child->ReadAll(), "two!\n");
  EXPECT_EQ(child->Wait(), 7);
}

TEST(ChildProcess, TellsWhichSignalEndedIt) {
  auto child = ChildProcess::Start({"/bin/cat"});
  ASSERT_TRUE(child.ok()) << child.status();
  child->Signal(SIGTERM);
  EXPECT_EQ(child->Wait(), 128 + SIGTERM);
  EXPECT_TRUE(WaitUntilGone(child->pid()));
}

TEST(ChildProcess, EndsWhenItsInputDoes) {
  auto child = ChildProcess::Start({"/bin/cat"});
  ASSERT_TRUE(child.ok()) << child.status();
  child->CloseStdin();
  EXPECT_EQ(child->Wait(), 0);
}

TEST(ChildProcess, SaysThatAProgramIsMissing) {
  EXPECT_EQ(ChildProcess::Start({"/nowhere/program"}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace egeria::testing

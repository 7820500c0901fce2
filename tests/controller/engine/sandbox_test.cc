#include "controller/engine/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <thread>

namespace egeria::reference {
namespace {

constexpr size_t kMemory = size_t{64} << 20;
constexpr int kFiltered = 0, kNotFiltered = 77;

// Runs `body` in a process of its own that has entered the sandbox. Returns what it returns, or minus the signal that
// has ended the process.
int InSandbox(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(EnterSandbox(kMemory).empty() ? body() : kNotFiltered);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

class SandboxTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "programs with a sanitizer have no sandbox";
#endif
    if (InSandbox([] { return kFiltered; }) == kNotFiltered) GTEST_SKIP() << "this kernel does not filter system calls";
  }
};

TEST_F(SandboxTest, LeavesNoFilesSocketsOrProcesses) {
  const pid_t parent = getpid();
  const std::function<int()> forbidden[] = {
      [] { return open("/etc/passwd", O_RDONLY); },
      [] { return open("/proc/self/mem", O_RDWR); },
      [] { return socket(AF_INET, SOCK_STREAM, 0); },
      [] { return socket(AF_UNIX, SOCK_DGRAM, 0); },
      [] { return static_cast<int>(fork()); },
      [] { return execl("/bin/true", "true", nullptr); },
      [parent] { return kill(parent, SIGTERM); },
      [parent] { return kill(parent, 0); },
      [] { return unlink("/tmp/nothing"); },
      [] { return memfd_create("more", 0); },
      [] { return setuid(1); },
  };
  int number = 0;
  for (const auto& call : forbidden) {
    EXPECT_EQ(InSandbox([&] { return call() == -1 && errno == EPERM ? 0 : 1; }), 0) << "call " << number;
    ++number;
  }
}

TEST_F(SandboxTest, LeavesThreadsClocksAndMemory) {
  EXPECT_EQ(InSandbox([] {
              int sum = 0;
              std::thread([&sum] { sum = 7; }).join();
              return sum == 7 && time(nullptr) > 0 && write(2, "", 0) == 0 ? 0 : 1;
            }),
            0);
  EXPECT_EQ(InSandbox([] {
              void* code = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
              return mprotect(code, 4096, PROT_READ | PROT_EXEC);  // kernels of oneDNN are compiled as they are needed
            }),
            0);
}

TEST_F(SandboxTest, LimitsMemory) {
  EXPECT_EQ(InSandbox([] { return std::malloc(kMemory / 2) != nullptr ? 0 : 1; }), 0);
  EXPECT_EQ(InSandbox([] { return std::malloc(2 * kMemory) == nullptr ? 0 : 1; }), 0);
}

TEST_F(SandboxTest, AProgramThatAbortsIsSeenToDoSo) {
  EXPECT_EQ(InSandbox([]() -> int { std::abort(); }), -SIGABRT);
  EXPECT_EQ(InSandbox([]() -> int { return raise(SIGSEGV); }), -SIGSEGV);
}

TEST(BindToParent, AProcessWhoseParentIsAnotherEnds) {
  const pid_t child = fork();
  if (child == 0) {
    BindToParent(1 << 22, 1000);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1);
}

}  // namespace
}  // namespace egeria::reference

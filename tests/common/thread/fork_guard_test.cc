#include "common/thread/fork_guard.h"

#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "gtest/gtest.h"

namespace egeria {
namespace {

// An object that a forked child must neither use nor destroy.
class Guarded {
 public:
  explicit Guarded(int* touched) : touched_(touched) {}
  ~Guarded() { ++*touched_; }
  int Add(int one, int other) {
    ++*touched_;
    return one + other;
  }
  void Touch() { ++*touched_; }

 private:
  int* const touched_;
};

TEST(ForkGuard, GivesTheObjectInItsOwnProcess) {
  int touched = 0;
  {
    const ForkGuard<Guarded> guard(std::make_shared<Guarded>(&touched));
    EXPECT_NE(guard.get(), nullptr);
    EXPECT_EQ(guard.shared().get(), guard.get());
    EXPECT_EQ(guard.Call(&Guarded::Add, 2, 3), 5);
    guard.Call([](Guarded& object) { object.Touch(); });
    EXPECT_EQ(touched, 2);
  }
  EXPECT_EQ(touched, 3) << "destroyed";
}

TEST(ForkGuard, KeepsAForkedChildFromTheObject) {
  int touched = 0;
  std::optional<ForkGuard<Guarded>> guard(std::in_place, std::make_shared<Guarded>(&touched));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool kept = guard->get() == nullptr && guard->shared() == nullptr && guard->Call(&Guarded::Add, 2, 3) == 0;
    guard->Call(&Guarded::Touch);
    guard.reset();
    _exit(kept && touched == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(guard->Call(&Guarded::Add, 2, 3), 5);
}

TEST(ForkGuard, MayHoldNothing) {
  const ForkGuard<Guarded> guard;
  EXPECT_EQ(guard.get(), nullptr);
  EXPECT_EQ(guard.Call(&Guarded::Add, 2, 3), 0);
}

}  // namespace
}  // namespace egeria

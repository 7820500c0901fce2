#include "worker/cache/entry/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "gtest/gtest.h"

namespace egeria::cache {
namespace {

constexpr size_t kBytes = 4096;

bool Exists(const std::string& name) {
  const int descriptor = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (descriptor >= 0) close(descriptor);
  return descriptor >= 0;
}

// A segment as that process would have made it, so many seconds ago.
std::string Left(pid_t maker, time_t seconds_ago) {
  const std::string name = absl::StrCat("/egeria-cache-", maker, "-", JobId::Random().text());
  const int descriptor = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  EXPECT_GE(descriptor, 0);
  const timespec then = {time(nullptr) - seconds_ago, 0};
  const timespec times[2] = {then, then};
  EXPECT_EQ(futimens(descriptor, times), 0);
  close(descriptor);
  return name;
}

// The id of a process that has ended.
pid_t DeadProcess() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  return child;
}

TEST(SharedMemory, IsSeenByBothUntilTheLastHasGone) {
  auto made = SharedMemory::Create(kBytes);
  ASSERT_TRUE(made.ok()) << made.status();
  auto opened = SharedMemory::Open((*made)->name(), kBytes);
  ASSERT_TRUE(opened.ok()) << opened.status();
  (*made)->Unlink();
  EXPECT_FALSE(Exists((*made)->name()));
  std::memcpy((*made)->bytes().data(), "abc", 4);
  EXPECT_STREQ(reinterpret_cast<const char*>((*opened)->bytes().data()), "abc");
}

TEST(SharedMemory, OpensNothingElse) {
  for (const char* name : {"/egeria-cache-", "/egeria-cache-12", "/egeria-cache-x-0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11",
                           "/other-1-0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11", "/egeria-cache-1-../../etc/passwd"}) {
    EXPECT_EQ(SharedMemory::Open(name, kBytes).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  auto made = SharedMemory::Create(kBytes);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(SharedMemory::Open((*made)->name(), 2 * kBytes).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SharedMemory, WhatKilledProcessesLeftIsRemoved) {
  const std::string orphan = Left(DeadProcess(), 3600);
  const std::string young = Left(DeadProcess(), 0);
  const std::string living = Left(getpid(), 3600);
  ASSERT_TRUE(SharedMemory::Create(kBytes).ok());
  EXPECT_FALSE(Exists(orphan));
  EXPECT_TRUE(Exists(young)) << "perhaps of another container";
  EXPECT_TRUE(Exists(living));
  shm_unlink(young.c_str());
  shm_unlink(living.c_str());
}

}  // namespace
}  // namespace egeria::cache

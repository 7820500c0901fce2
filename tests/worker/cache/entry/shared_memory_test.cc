#include "worker/cache/entry/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "gtest/gtest.h"

namespace egeria::cache {
namespace {

constexpr size_t kBytes = 4096;

absl::Status Opened(int descriptor, size_t bytes = kBytes) {
  return SharedMemory::Open(getpid(), descriptor, bytes).status();
}

TEST(SharedMemory, IsSeenByBothUntilTheLastHasGone) {
  auto made = SharedMemory::Create(kBytes);
  ASSERT_TRUE(made.ok()) << made.status();
  auto opened = SharedMemory::Open(getpid(), (*made)->descriptor(), kBytes);
  ASSERT_TRUE(opened.ok()) << opened.status();
  std::memcpy((*made)->bytes().data(), "abc", 4);
  made->reset();
  EXPECT_STREQ(reinterpret_cast<const char*>((*opened)->bytes().data()), "abc");
}

TEST(SharedMemory, NobodyCanTakeItsPagesAway) {
  auto made = SharedMemory::Create(kBytes);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_NE(ftruncate((*made)->descriptor(), 0), 0);
  EXPECT_NE(fcntl((*made)->descriptor(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SharedMemory, OpensNothingWhosePagesCanGo) {
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, kBytes), 0);
  EXPECT_EQ(Opened(unsealed).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(fcntl(unsealed, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(Opened(unsealed).ok());
  close(unsealed);

  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  EXPECT_FALSE(Opened(file).ok()) << "a file on a disk can be truncated";
  close(file);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  EXPECT_EQ(Opened(ends[1]).code(), absl::StatusCode::kInvalidArgument);
  for (const int end : ends) close(end);
}

TEST(SharedMemory, OpensNothingThatIsNotThereOrTooSmallOrTooLarge) {
  EXPECT_EQ(Opened(-1).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(SharedMemory::Open(0, 3, kBytes).status().code(), absl::StatusCode::kUnavailable);
  auto made = SharedMemory::Create(kBytes);
  ASSERT_TRUE(made.ok());
  const int descriptor = (*made)->descriptor();
  for (const size_t bytes : {2 * kBytes, size_t{0}, SharedMemory::kMostBytes + 1}) {
    EXPECT_EQ(Opened(descriptor, bytes).code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
  EXPECT_EQ(SharedMemory::Create(size_t{1} << 50).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace egeria::cache

#include "common/base/private_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace egeria {
namespace {

using ::testing::HasSubstr;

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(stat(path.c_str(), &info), 0);
  return info.st_mode & 0777;
}

TEST(PrivateFolder, IsMadeForItsUserAlone) {
  const testing::TempFolder folder;
  const std::string path = folder / "above/state";
  ASSERT_TRUE(MakePrivateFolder(path).ok());
  EXPECT_EQ(ModeOf(path), 0700u);
  EXPECT_TRUE(MakePrivateFolder(path).ok()) << "it is there and as it should be";
}

TEST(PrivateFolder, OneThatOthersCanWriteToIsRefused) {
  const testing::TempFolder folder;
  for (const mode_t mode : {0777, 0720, 0702, 01777}) {
    ASSERT_EQ(chmod(folder.path().c_str(), mode), 0);
    const absl::Status refused = MakePrivateFolder(folder.path());
    EXPECT_THAT(std::string(refused.message()), HasSubstr("[UNSAFE_FOLDER] others can write to")) << mode;
    EXPECT_TRUE(OthersCanWriteTo(folder.path()));
  }
  ASSERT_EQ(chmod(folder.path().c_str(), 0700), 0);
}

TEST(PrivateFolder, OneThatOthersCanReadIsWarnedOf) {
  const testing::TempFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(MakePrivateFolder(folder.path()).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("others can read the files in " + folder.path()));
  EXPECT_FALSE(OthersCanWriteTo(folder.path()));
}

TEST(PrivateFolder, AnotherUsersIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  const testing::TempFolder folder;
  const std::string path = folder / "theirs";
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
  EXPECT_THAT(std::string(MakePrivateFolder(path).message()), HasSubstr("belongs to user 65534"));
  EXPECT_TRUE(OthersCanWriteTo(path));
}

TEST(PrivateFolder, WhatIsNoFolderIsSaid) {
  EXPECT_THAT(std::string(MakePrivateFolder("/proc/self/exe").message()), HasSubstr("is no folder"));
  EXPECT_FALSE(MakePrivateFolder("/proc/none/state").ok());
}

}  // namespace
}  // namespace egeria

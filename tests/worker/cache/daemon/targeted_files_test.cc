#include "worker/cache/daemon/targeted_files.h"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace egeria::cache {
namespace {

class TargetedFilesTest : public ::testing::Test {
 protected:
  // Reads `size` bytes from the third on, and tells whether they lie in `wanted_` instead of RocksDB's memory and
  // (read_ok_) whether RocksDB would go on with them.
  std::string Read(const std::string& name, size_t size, bool* in_wanted) {
    const std::string path = folder_ / name;
    std::ofstream(path) << "0123456789";
    std::unique_ptr<rocksdb::FSRandomAccessFile> file;
    EXPECT_TRUE(files_.NewRandomAccessFile(path, {}, &file, nullptr).ok());
    std::string scratch(size, '#');
    rocksdb::Slice result;
    read_ok_ = file->Read(2, size, {}, &result, scratch.data(), nullptr).ok();
    *in_wanted = result.data() == wanted_.data();
    EXPECT_TRUE(*in_wanted || result.data() == scratch.data());
    return result.ToString();
  }
  std::span<std::byte> Wanted(size_t size) { return std::as_writable_bytes(std::span(wanted_)).first(size); }

  testing::TempFolder folder_;
  TargetedFiles files_{rocksdb::FileSystem::Default()};
  std::string wanted_ = std::string(8, '#');
  bool in_wanted_ = false;
  bool read_ok_ = false;
};

TEST_F(TargetedFilesTest, ReadsABlobToWhereItIsWanted) {
  const ReadTarget target(Wanted(5));
  EXPECT_EQ(Read("1.blob", 5, &in_wanted_), "23456");
  EXPECT_TRUE(in_wanted_);
  EXPECT_TRUE(target.is_filled());
  EXPECT_FALSE(read_ok_) << "it is not to be copied";
  EXPECT_EQ(wanted_, "23456###");
}

TEST_F(TargetedFilesTest, KnowsThePlaceWhileTheFileIsOpen) {
  const std::string path = folder_ / "1.blob";
  std::ofstream(path) << "0123456789";
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  ASSERT_TRUE(files_.NewRandomAccessFile(path, {}, &file, nullptr).ok());
  BlobPlace place;
  EXPECT_FALSE(place.Read(Wanted(5))) << "nowhere";
  {
    const ReadTarget target(Wanted(5));
    rocksdb::Slice result;
    file->Read(2, 5, {}, &result, nullptr, nullptr);
    place = target.place();
  }
  wanted_.assign(8, '#');
  EXPECT_TRUE(place.Read(Wanted(5)));
  EXPECT_EQ(wanted_, "23456###");
  std::filesystem::resize_file(path, 6);
  EXPECT_FALSE(place.Read(Wanted(5))) << "it ends early";
  file.reset();
  EXPECT_FALSE(place.Read(Wanted(1)));
}

TEST_F(TargetedFilesTest, LeavesAllOtherReadsAlone) {
  EXPECT_EQ(Read("1.blob", 5, &in_wanted_), "23456") << "nobody wants it";
  EXPECT_FALSE(in_wanted_);
  EXPECT_TRUE(read_ok_);
  const ReadTarget target(Wanted(5));
  EXPECT_EQ(Read("1.blob", 4, &in_wanted_), "2345") << "another length";
  EXPECT_FALSE(in_wanted_);
  EXPECT_EQ(Read("1.sst", 5, &in_wanted_), "23456") << "no blob";
  EXPECT_FALSE(in_wanted_);
  EXPECT_TRUE(read_ok_);
  EXPECT_FALSE(target.is_filled());
  EXPECT_EQ(wanted_, "########");
}

TEST_F(TargetedFilesTest, AFileThatEndsEarlyFillsNothing) {
  {
    const ReadTarget target(Wanted(8));
    EXPECT_EQ(Read("1.blob", 8, &in_wanted_), "23456789");
    EXPECT_TRUE(target.is_filled());
  }
  wanted_.resize(9);
  const ReadTarget target(Wanted(9));
  EXPECT_EQ(Read("1.blob", 9, &in_wanted_), "23456789");
  EXPECT_TRUE(read_ok_);
  EXPECT_FALSE(target.is_filled());
}

}  // namespace
}  // namespace egeria::cache

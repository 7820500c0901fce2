#include "common/storage/log_reader.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "rocksdb/db.h"
#include "tests/support/temp_folder.h"

namespace egeria {
namespace {

// The log that RocksDB writes for batches of these sizes.
std::string LogOf(const std::vector<size_t>& sizes) {
  const testing::TempFolder folder;
  rocksdb::Options options;
  options.create_if_missing = true;
  rocksdb::DB* opened = nullptr;
  EXPECT_TRUE(rocksdb::DB::Open(options, folder / "db", &opened).ok());
  const std::unique_ptr<rocksdb::DB> db(opened);
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_TRUE(db->Put({}, std::to_string(i), std::string(sizes[i], static_cast<char>('a' + i))).ok());
  }
  for (const auto& file : std::filesystem::directory_iterator(folder / "db")) {
    if (file.path().extension() != ".log") continue;
    std::ifstream stream(file.path(), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  }
  return "";
}

// The batches that write values of the i-th letter.
std::string LettersOf(const LogContents& log) {
  std::string letters;
  for (const std::string& batch : log.batches) letters.push_back(batch.back());
  return letters;
}

TEST(LogReader, ReadsWhatRocksDbWrites) {
  const LogContents log = ReadLog(LogOf({10, 100'000, 1, 32'768, 40'000, 7}));
  EXPECT_EQ(LettersOf(log), "abcdef");
  EXPECT_EQ(log.damaged_places, 0);
}

TEST(LogReader, LosesOnlyTheBatchThatIsDamaged) {
  const std::string good = LogOf({50, 60, 70'000, 80, 90});
  for (size_t at = 0; at < good.size(); at += at < 200 ? 1 : 997) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    const LogContents log = ReadLog(bad);
    const std::string letters = LettersOf(log);
    EXPECT_EQ(letters.size(), 4u) << "damaged at " << at << ": " << letters;
    EXPECT_EQ(log.damaged_places, letters == "abcd" ? 0 : 1) << at;
  }
}

TEST(LogReader, ATornEndIsNoDamage) {
  const std::string good = LogOf({50, 60, 70'000, 80});
  for (const size_t cut : {size_t{1}, size_t{60}, size_t{200}, size_t{50'000}}) {
    const LogContents log = ReadLog(absl::string_view(good).substr(0, good.size() - cut));
    EXPECT_EQ(log.damaged_places, 0) << cut;
    EXPECT_EQ(LettersOf(log), cut < 100 ? "abc" : "ab") << cut;
  }
  EXPECT_EQ(LettersOf(ReadLog(good + std::string(5'000, '\0'))), "abcd") << "space that was reserved";
  EXPECT_EQ(ReadLog("").batches.size(), 0u);
}

}  // namespace
}  // namespace egeria

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/dataset.h"
#include "worker/trainer/data/sampler.h"

namespace egeria::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

// A folder that is gone when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "egeria-data-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  void Write(const std::string& name, const std::string& content) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << content;
  }

 private:
  fs::path path_;
};

// `count` CIFAR records: image i has label (first + i) % 10, and every byte of it is first + i.
std::string CifarRecords(int count, int first) {
  std::string records;
  for (int i = first; i < first + count; ++i) {
    records.push_back(static_cast<char>(i % 10));
    records.append(3072, static_cast<char>(i));
  }
  return records;
}

void WriteCifar(const TemporaryFolder& folder, const std::string& below) {
  for (int b = 1; b <= 5; ++b) folder.Write(below + "data_batch_" + std::to_string(b) + ".bin", CifarRecords(2, 2 * b));
  folder.Write(below + "test_batch.bin", CifarRecords(3, 100));
}

TEST(Cifar10, ReadsTheStandardBinaryFilesInOrder) {
  for (const char* below : {"", "cifar-10-batches-bin/"}) {
    TemporaryFolder folder;
    WriteCifar(folder, below);
    const absl::StatusOr<Task> task = LoadCifar10(folder.path().string());
    ASSERT_TRUE(task.ok()) << task.status();
    EXPECT_THAT(task->train.labels, ElementsAre(2, 3, 4, 5, 6, 7, 8, 9, 0, 1));
    EXPECT_THAT(task->validation.labels, ElementsAre(0, 1, 2));
    EXPECT_EQ(task->train.pixels[3 * 3072 + 5], 5);
    EXPECT_EQ(task->train.image_bytes(), 3072);
  }
}

TEST(Cifar10, NamesATruncatedFile) {
  TemporaryFolder folder;
  WriteCifar(folder, "");
  folder.Write("data_batch_3.bin", CifarRecords(2, 0).substr(0, 5000));
  const absl::Status status = LoadCifar10(folder.path().string()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(HasSubstr("[TRUNCATED_DATA]"), HasSubstr("data_batch_3.bin")));
}

TEST(Cifar10, NamesAMissingFileAndWhatToDo) {
  TemporaryFolder folder;
  const absl::Status status = LoadCifar10(folder.path().string()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), ::testing::AllOf(HasSubstr("[NO_DATA]"), HasSubstr("--data")));
}

TEST(Cifar10, RefusesALabelBeyondTheClasses) {
  TemporaryFolder folder;
  WriteCifar(folder, "");
  folder.Write("test_batch.bin", "\x0a" + std::string(3072, 'x'));
  EXPECT_THAT(std::string(LoadCifar10(folder.path().string()).status().message()), HasSubstr("[BAD_LABEL]"));
}

std::string Word(uint32_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

// Three images of 2 x 2, two of them for training.
std::string DigitsFile(uint32_t version = 1, uint32_t training = 2) {
  return "EGDIGITS" + Word(version) + Word(3) + Word(training) + Word(2) + Word(2) + Word(10) + Word(16) +
         std::string({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}) + std::string({7, 8, 9});
}

TEST(Digits, ReadsWhatTheFormatSays) {
  TemporaryFolder folder;
  folder.Write("digits.bin", DigitsFile());
  for (const fs::path& path : {folder.path(), folder.path() / "digits.bin"}) {
    const absl::StatusOr<Task> task = LoadDigits(path.string());
    ASSERT_TRUE(task.ok()) << task.status();
    EXPECT_THAT(task->train.labels, ElementsAre(7, 8));
    EXPECT_THAT(task->validation.labels, ElementsAre(9));
    EXPECT_THAT(task->validation.pixels, ElementsAre(8, 9, 10, 11));
    EXPECT_EQ(task->train.classes, 10);
    EXPECT_EQ(task->normalisation.scale, 16);
  }
}

TEST(Digits, RefusesWhatIsNotADigitsFile) {
  TemporaryFolder folder;
  auto message = [&](const std::string& content) {
    folder.Write("digits.bin", content);
    return std::string(LoadDigits(folder.path().string()).status().message());
  };
  EXPECT_THAT(message(""), HasSubstr("[BAD_FORMAT]"));
  EXPECT_THAT(message("NOTDIGIT" + DigitsFile().substr(8)), HasSubstr("[BAD_FORMAT]"));
  EXPECT_THAT(message(DigitsFile(2)), HasSubstr("[BAD_FORMAT]"));
  EXPECT_THAT(message(DigitsFile(1, 3)), HasSubstr("[BAD_FORMAT]"));
  EXPECT_THAT(message(DigitsFile().substr(0, 40)), HasSubstr("[TRUNCATED_DATA]"));
  EXPECT_THAT(message(DigitsFile() + "x"), HasSubstr("[TRUNCATED_DATA]"));
  std::string bad_label = DigitsFile();
  bad_label.back() = 10;
  EXPECT_THAT(message(bad_label), HasSubstr("[BAD_LABEL]"));
}

TEST(Digits, TheExporterWritesWhatTheLoaderReads) {
  TemporaryFolder folder;
  const std::string file = (folder.path() / "new" / "digits.bin").string();
  const std::string command =
      std::string(EGERIA_PYTHON) + " " + EGERIA_SOURCE_DIR + "/deploy/digits/export_digits.py " + file;
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const absl::StatusOr<Task> task = LoadDigits(file);
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->train.size(), 1437);
  EXPECT_EQ(task->validation.size(), 360);
  EXPECT_EQ(task->train.classes, 10);
  EXPECT_EQ(task->normalisation.scale, 16);
  EXPECT_EQ(std::set<uint8_t>(task->validation.labels.begin(), task->validation.labels.end()).size(), 10u);
}

TEST(Digits, EveryTruncationIsAnError) {
  TemporaryFolder folder;
  for (size_t length = 0; length < DigitsFile().size(); ++length) {
    folder.Write("digits.bin", DigitsFile().substr(0, length));
    EXPECT_FALSE(LoadDigits(folder.path().string()).ok()) << length << " bytes";
  }
}

TEST(Sampler, RanksTogetherSeeTheBatchOfOneBigRank) {
  Sampler one = *Sampler::Make(103, 1, 12, 5), three = *Sampler::Make(103, 3, 4, 5);
  EXPECT_EQ(one.steps_per_epoch(), 8);
  for (int64_t step = 0; step < 20; ++step) {
    std::vector<int64_t> together;
    for (int rank = 0; rank < 3; ++rank) {
      const std::vector<int64_t> part = three.Batch(step, rank);
      together.insert(together.end(), part.begin(), part.end());
    }
    EXPECT_EQ(together, one.Batch(step, 0));
  }
}

TEST(Sampler, AnEpochHasNoSampleTwiceAndTheNextOneAnotherOrder) {
  Sampler sampler = *Sampler::Make(40, 2, 5, 1);
  std::vector<int64_t> first, second;
  for (int64_t step = 0; step < 8; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      for (const int64_t index : sampler.Batch(step, rank)) (step < 4 ? first : second).push_back(index);
    }
  }
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 40u);
  EXPECT_NE(first, second);
}

TEST(Sampler, AnyStepCanBeAskedForInAnyOrder) {
  Sampler forward = *Sampler::Make(50, 2, 5, 9), resumed = *Sampler::Make(50, 2, 5, 9);
  for (int64_t step = 0; step < 13; ++step) forward.Batch(step, 1);
  EXPECT_EQ(resumed.Batch(13, 1), forward.Batch(13, 1));
  EXPECT_EQ(forward.Batch(2, 0), resumed.Batch(2, 0));
  EXPECT_NE(Sampler::Make(50, 2, 5, 10)->Batch(0, 0), Sampler::Make(50, 2, 5, 9)->Batch(0, 0));
}

TEST(Sampler, RefusesLessThanOneGlobalBatch) {
  EXPECT_THAT(std::string(Sampler::Make(9, 2, 5, 1).status().message()), HasSubstr("[TOO_FEW_SAMPLES]"));
  EXPECT_TRUE(Sampler::Make(10, 2, 5, 1).ok());
}

// One channel, 4 x 4, pixel values 1..16.
ImageSet Ramp() {
  ImageSet set{1, 4, 4, 2, std::vector<uint8_t>(16), {1}};
  std::iota(set.pixels.begin(), set.pixels.end(), uint8_t{1});
  return set;
}

TEST(FillBatch, NormalisesEachPixel) {
  float images[16];
  int64_t label = 0;
  FillBatch(Ramp(), {16, {0.5f}, {0.25f}}, {0}, nullptr, 0, images, &label);
  EXPECT_EQ(label, 1);
  for (int i = 0; i < 16; ++i) EXPECT_FLOAT_EQ(images[i], ((i + 1) / 16.0f - 0.5f) / 0.25f);
}

TEST(FillBatch, AugmentsByCropsOfThePaddedImageAndFlips) {
  const Augmentation augmentation{1, true, 3};
  std::set<std::vector<float>> seen;
  for (int64_t epoch = 0; epoch < 400; ++epoch) {
    std::vector<float> images(16);
    int64_t label = 0;
    FillBatch(Ramp(), {1, {0.0f}, {1.0f}}, {0}, &augmentation, epoch, images.data(), &label);
    seen.insert(images);
    // Rows keep their distance of 4 and pixels of a row theirs of 1, whatever crop and flip.
    for (int i = 0; i < 12; ++i) {
      if (images[i] != 0 && images[i + 4] != 0) {
        EXPECT_EQ(images[i + 4] - images[i], 4);
      }
    }
  }
  EXPECT_EQ(seen.size(), 18u) << "9 crops, each flipped or not";
}

TEST(FillBatch, AugmentationIsAFunctionOfSeedEpochAndImage) {
  auto draw = [](uint64_t seed, int64_t epoch) {
    ImageSet set = Ramp();
    set.pixels.resize(160);
    for (int i = 0; i < 160; ++i) set.pixels[i] = static_cast<uint8_t>(i);
    set.labels.resize(10);
    const Augmentation augmentation{2, true, seed};
    std::vector<float> images(160);
    std::vector<int64_t> labels(10);
    FillBatch(set, {1, {0.0f}, {1.0f}}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, &augmentation, epoch, images.data(),
              labels.data());
    return images;
  };
  EXPECT_EQ(draw(1, 1), draw(1, 1));
  EXPECT_NE(draw(1, 1), draw(1, 2));
  EXPECT_NE(draw(1, 1), draw(2, 1));
}

}  // namespace
}  // namespace egeria::trainer

#include "worker/trainer/data/dataset.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/base/status.h"

namespace egeria::trainer {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kCifarImageBytes = 3 * 32 * 32;
constexpr int64_t kCifarRecordBytes = 1 + kCifarImageBytes;
constexpr char kDigitsMagic[8] = {'E', 'G', 'D', 'I', 'G', 'I', 'T', 'S'};
constexpr int kDigitsHeaderWords = 7;

absl::StatusOr<std::vector<uint8_t>> ReadFile(const fs::path& path, const char* hint) {
  std::ifstream in(path, std::ios::binary);
  std::error_code ignored;
  if (!in || fs::is_directory(path, ignored)) {
    return NamedError(absl::StatusCode::kNotFound, "NO_DATA", "cannot read ", path.string(), ": ", hint);
  }
  return std::vector<uint8_t>(std::istreambuf_iterator<char>(in), {});
}

absl::Status CheckLabels(const ImageSet& set, const std::string& path) {
  for (int64_t i = 0; i < set.size(); ++i) {
    if (set.labels[i] >= set.classes) {
      return NamedError(absl::StatusCode::kInvalidArgument, "BAD_LABEL", path, ": image ", i, " has label ",
                        static_cast<int>(set.labels[i]), ", but there are ", set.classes, " classes");
    }
  }
  return absl::OkStatus();
}

absl::Status AppendCifarFile(const fs::path& path, ImageSet* set) {
  EGERIA_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                          ReadFile(path,
                                   "--data must name the folder with CIFAR-10's binary files (data_batch_1.bin ... "
                                   "test_batch.bin)"));
  if (bytes.empty() || bytes.size() % kCifarRecordBytes != 0) {
    return NamedError(absl::StatusCode::kInvalidArgument, "TRUNCATED_DATA", path.string(), " has ", bytes.size(),
                      " bytes, which is not a whole number of records of ", kCifarRecordBytes, ": fetch it again");
  }
  for (size_t at = 0; at < bytes.size(); at += kCifarRecordBytes) {
    set->labels.push_back(bytes[at]);
    set->pixels.insert(set->pixels.end(), bytes.begin() + at + 1, bytes.begin() + at + kCifarRecordBytes);
  }
  return CheckLabels(*set, path.string());
}

ImageSet EmptyCifar() { return ImageSet{3, 32, 32, 10, {}, {}}; }

uint32_t LittleEndianWord(const uint8_t* bytes) {
  return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | static_cast<uint32_t>(bytes[3]) << 24;
}

}  // namespace

absl::StatusOr<Task> LoadCifar10(const std::string& folder) {
  fs::path root(folder);
  std::error_code ignored;
  if (fs::is_directory(root / "cifar-10-batches-bin", ignored)) root /= "cifar-10-batches-bin";
  Task task;
  task.train = EmptyCifar();
  task.validation = EmptyCifar();
  for (int batch = 1; batch <= 5; ++batch) {
    EGERIA_RETURN_IF_ERROR(AppendCifarFile(root / absl::StrCat("data_batch_", batch, ".bin"), &task.train));
  }
  EGERIA_RETURN_IF_ERROR(AppendCifarFile(root / "test_batch.bin", &task.validation));
  // Mean and deviation of each channel over the training images.
  task.normalisation = {255, {0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}};
  return task;
}

absl::StatusOr<Task> LoadDigits(const std::string& path) {
  fs::path file(path);
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) file /= "digits.bin";
  EGERIA_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                          ReadFile(file, "make it with deploy/digits/export_digits.py FILE"));
  constexpr size_t kHeaderBytes = sizeof(kDigitsMagic) + 4 * kDigitsHeaderWords;
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data(), kDigitsMagic, sizeof(kDigitsMagic)) != 0) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_FORMAT", file.string(),
                      " is not a digits file: make it with deploy/digits/export_digits.py FILE");
  }
  uint32_t word[kDigitsHeaderWords];
  for (int i = 0; i < kDigitsHeaderWords; ++i) {
    word[i] = LittleEndianWord(bytes.data() + sizeof(kDigitsMagic) + 4 * i);
  }
  const auto [version, images, training, height, width, classes, largest] = word;
  if (version != 1 || images == 0 || images > 10'000'000 || training == 0 || training >= images || height == 0 ||
      height > 1024 || width == 0 || width > 1024 || classes == 0 || classes > 256 || largest == 0) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_FORMAT", file.string(), ": version ", version, ", ",
                      images, " images (", training, " for training) of ", height, " x ", width, ", ", classes,
                      " classes");
  }
  const size_t image_bytes = size_t{1} * height * width;
  if (bytes.size() != kHeaderBytes + images * (image_bytes + 1)) {
    return NamedError(absl::StatusCode::kInvalidArgument, "TRUNCATED_DATA", file.string(), " has ", bytes.size(),
                      " bytes instead of ", kHeaderBytes + images * (image_bytes + 1), ": export it again");
  }
  const uint8_t* const pixels = bytes.data() + kHeaderBytes;
  const uint8_t* const labels = pixels + images * image_bytes;
  auto slice = [&](uint32_t begin, uint32_t end) {
    return ImageSet{1,
                    static_cast<int>(height),
                    static_cast<int>(width),
                    static_cast<int>(classes),
                    std::vector<uint8_t>(pixels + begin * image_bytes, pixels + end * image_bytes),
                    std::vector<uint8_t>(labels + begin, labels + end)};
  };
  Task task;
  task.train = slice(0, training);
  task.validation = slice(training, images);
  task.normalisation = {static_cast<float>(largest), {0.3f}, {0.38f}};
  EGERIA_RETURN_IF_ERROR(CheckLabels(task.train, file.string()));
  EGERIA_RETURN_IF_ERROR(CheckLabels(task.validation, file.string()));
  return task;
}

void Truncate(int64_t count, ImageSet* set) {
  if (count <= 0 || count >= set->size()) return;
  set->labels.resize(count);
  set->pixels.resize(count * set->image_bytes());
}

}  // namespace egeria::trainer

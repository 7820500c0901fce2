#include "worker/agent/upload.h"

#include <numeric>
#include <string>
#include <vector>

#include "common/rpc/channel.h"
#include "gtest/gtest.h"
#include "worker/agent/upload_cutter.h"

namespace egeria::worker {
namespace {

WireTensor Bytes(const std::string& name, size_t count, unsigned char first) {
  std::vector<unsigned char> bytes(count);
  std::iota(bytes.begin(), bytes.end(), first);
  return MakeWireTensor({name, DataType::kUInt8, {static_cast<int64_t>(count)}}, bytes.data());
}

std::string Content(const Upload& upload) {
  std::string all;
  for (const WireTensor& tensor : TensorsOf(upload)) {
    if (tensor.size() > 0) all.append(reinterpret_cast<const char*>(tensor.data()), tensor.size());
  }
  return all;
}

TEST(UploadCutter, WritesAHeaderWithEverythingThatTheControllerMustKnow) {
  Sample sample{ModuleIndex(2), ModuleIndex(1), 50, 7, {Bytes("x", 3, 0), Bytes("compared", 4, 9)}};
  const Upload upload = std::move(sample);
  ASSERT_TRUE(CheckTensors(upload).ok());
  UploadCutter cutter(&upload, 11);
  v1::WorkerMessage message;
  ASSERT_TRUE(cutter.Next(&message));
  const v1::UploadBegin& begin = message.upload_begin();
  EXPECT_EQ(begin.upload_id(), 11);
  EXPECT_EQ(begin.sample().module(), 2);
  EXPECT_EQ(begin.sample().first_module(), 1);
  EXPECT_EQ(begin.sample().step(), 50);
  EXPECT_EQ(begin.sample().request_version(), 7);
  EXPECT_EQ(begin.sample().metric(), v1::ACTIVATION_METRIC_SP);
  ASSERT_EQ(begin.tensors_size(), 2);
  EXPECT_EQ(begin.tensors(1).name(), "compared");
  EXPECT_EQ(begin.tensors(1).dtype(), v1::DATA_TYPE_UINT8);
  EXPECT_EQ(begin.tensors(1).shape(0), 4);
}

TEST(UploadCutter, WritesTheMetricThatTheRequestAskedFor) {
  const SamplingRequest request{.metric = ActivationMetric::kActivationNorm};
  const Upload upload = SampleOf(request, 50);
  UploadCutter cutter(&upload, 1);
  v1::WorkerMessage message;
  ASSERT_TRUE(cutter.Next(&message));
  EXPECT_EQ(message.upload_begin().sample().metric(), v1::ACTIVATION_METRIC_NORM);
}

TEST(UploadCutter, CutsAcrossTensorsIntoFullChunksWithoutGaps) {
  for (const std::vector<size_t>& sizes : std::vector<std::vector<size_t>>{{1},
                                                                           {rpc::kMaxChunkBytes},
                                                                           {rpc::kMaxChunkBytes + 1},
                                                                           {0, 5, 0, rpc::kMaxChunkBytes, 0},
                                                                           {3, 2 * rpc::kMaxChunkBytes + 100, 7}}) {
    Snapshot snapshot{ModuleIndex(1), 5, 3, {}};
    for (size_t i = 0; i < sizes.size(); ++i) {
      snapshot.tensors.push_back(Bytes("t" + std::to_string(i), sizes[i], static_cast<unsigned char>(i)));
    }
    const Upload upload = std::move(snapshot);
    ASSERT_TRUE(CheckTensors(upload).ok());
    UploadCutter cutter(&upload, 1);
    v1::WorkerMessage message;
    ASSERT_TRUE(cutter.Next(&message));
    EXPECT_EQ(message.upload_begin().snapshot().version(), 3);
    std::string received;
    while (cutter.Next(&message)) {
      const v1::UploadChunk& chunk = message.upload_chunk();
      EXPECT_EQ(chunk.offset(), static_cast<int64_t>(received.size()));
      received += chunk.data();
      EXPECT_TRUE(chunk.data().size() == rpc::kMaxChunkBytes || received.size() == ByteSizeOf(upload));
    }
    EXPECT_EQ(received, Content(upload));
  }
}

TEST(UploadCutter, SendsOnlyAHeaderForNothing) {
  const Upload upload = Snapshot{ModuleIndex(0), 1, 1, {}};
  ASSERT_TRUE(CheckTensors(upload).ok());
  UploadCutter cutter(&upload, 1);
  v1::WorkerMessage message;
  EXPECT_TRUE(cutter.Next(&message));
  EXPECT_FALSE(cutter.Next(&message));
}

TEST(UploadCutter, WritesAReadingAsOneMessage) {
  const Upload upload = Reading{ModuleIndex(2), 50, 7, 0.125};
  ASSERT_TRUE(CheckTensors(upload).ok());
  EXPECT_TRUE(TensorsOf(upload).empty());
  UploadCutter cutter(&upload, 11);
  v1::WorkerMessage message;
  ASSERT_TRUE(cutter.Next(&message));
  EXPECT_EQ(message.reading().upload_id(), 11);
  EXPECT_EQ(message.reading().module(), 2);
  EXPECT_EQ(message.reading().step(), 50);
  EXPECT_EQ(message.reading().request_version(), 7);
  EXPECT_EQ(message.reading().plasticity(), 0.125);
  EXPECT_FALSE(cutter.Next(&message));
}

TEST(UploadCutter, WritesGradientsAsOneMessage) {
  const Upload upload = GradientReading{ModuleIndex(2), 50, 7, 4, {0.5, 2}, {0.25, 1}, 128, {-0.5, 3}};
  ASSERT_TRUE(CheckTensors(upload).ok());
  EXPECT_TRUE(TensorsOf(upload).empty());
  UploadCutter cutter(&upload, 11);
  v1::WorkerMessage message;
  ASSERT_TRUE(cutter.Next(&message));
  const v1::GradientReading& reading = message.gradients();
  EXPECT_EQ(reading.upload_id(), 11);
  EXPECT_EQ(reading.first_module(), 2);
  EXPECT_EQ(reading.step(), 50);
  EXPECT_EQ(reading.request_version(), 7);
  EXPECT_EQ(reading.parts(), 4);
  EXPECT_EQ(reading.samples(), 128);
  ASSERT_EQ(reading.mean_of_squares_size(), 2);
  ASSERT_EQ(reading.square_of_mean_size(), 2);
  EXPECT_EQ(reading.mean_of_squares(1), 2);
  EXPECT_EQ(reading.square_of_mean(0), 0.25);
  ASSERT_EQ(reading.progress_size(), 2);
  EXPECT_EQ(reading.progress(0), -0.5);
  EXPECT_FALSE(cutter.Next(&message));
}

TEST(CheckTensors, RefusesTensorsThatDoNotHoldWhatTheySay) {
  WireTensor tensor = Bytes("x", 4, 0);
  tensor.spec.shape = {5};
  EXPECT_FALSE(CheckTensors(Sample{{}, {}, 0, 0, {tensor}}).ok());
  tensor.spec.shape = {-4};
  EXPECT_FALSE(CheckTensors(Sample{{}, {}, 0, 0, {tensor}}).ok());
  tensor.spec = {"x", DataType::kUnspecified, {4}};
  EXPECT_FALSE(CheckTensors(Sample{{}, {}, 0, 0, {tensor}}).ok());
  EXPECT_FALSE(CheckTensors(Sample{{}, {}, 0, 0, {WireTensor{{"x", DataType::kUInt8, {4}}, {}, nullptr}}}).ok());
}

}  // namespace
}  // namespace egeria::worker

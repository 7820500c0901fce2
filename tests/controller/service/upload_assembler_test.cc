#include "controller/service/upload_assembler.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_fixtures.h"

namespace egeria::controller {
namespace {

using ::egeria::testing::MessagesOf;
using ::egeria::testing::SampleUpload;
using ::egeria::testing::TestUpload;
using ::testing::StartsWith;

TestUpload Sample(int64_t id) {
  v1::SamplingRequest request;
  request.set_batch_size(2);
  return SampleUpload(id, request, 10);  // 32 bytes of inputs and 16 of the Gram matrix
}

v1::UploadChunk Chunk(const TestUpload& upload, size_t offset, size_t size) {
  v1::UploadChunk chunk;
  chunk.set_upload_id(upload.begin.upload_id());
  chunk.set_offset(static_cast<int64_t>(offset));
  chunk.set_data(upload.bytes.substr(offset, size));
  return chunk;
}

class UploadAssemblerTest : public ::testing::Test {
 protected:
  std::string ErrorOf(const absl::StatusOr<UploadAssembler::Outcome>& outcome) {
    return std::string(outcome.status().message());
  }
  // The assembler refuses to go on with this chunk, with this error.
  void ExpectChunkError(const v1::UploadChunk& chunk, const std::string& name) {
    EXPECT_THAT(ErrorOf(assembler_.Add(chunk)), StartsWith(name));
  }

  UploadLimits limits_ = [] {
    UploadLimits limits;
    limits.max_upload_bytes = 1'000;
    limits.max_chunk_bytes = 100;
    limits.max_tensors = 3;
    return limits;
  }();
  UploadBudget budget_{500};
  UploadAssembler assembler_{limits_, &budget_};
};

TEST_F(UploadAssemblerTest, PutsTensorsTogetherHoweverTheyAreCut) {
  for (size_t size : {1, 3, 16, 32, 47, 48}) {
    SCOPED_TRACE(size);
    const TestUpload upload = Sample(static_cast<int64_t>(size));
    ASSERT_TRUE(assembler_.Begin(upload.begin).ok());
    for (size_t offset = 0; offset < upload.bytes.size(); offset += size) {
      auto outcome = assembler_.Add(Chunk(upload, offset, size));
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      ASSERT_EQ(outcome->complete.has_value(), offset + size >= upload.bytes.size());
      if (!outcome->complete) continue;
      const auto& tensors = outcome->complete->tensors;
      ASSERT_EQ(tensors.size(), 2u);
      EXPECT_EQ(tensors[1].spec.name, "gram");
      std::string bytes;
      for (const WireTensor& tensor : tensors)
        bytes.append(reinterpret_cast<const char*>(tensor.data()), tensor.size());
      EXPECT_EQ(bytes, upload.bytes);
      EXPECT_EQ(outcome->complete->begin.sample().step(), 10);
    }
  }
}

TEST_F(UploadAssemblerTest, GivesItsBytesBackAndNeedsNoBudgetOnceItHasDiscarded) {
  auto budget = std::make_unique<UploadBudget>(16);
  UploadAssembler assembler(limits_, budget.get());
  const TestUpload upload = Sample(1);
  ASSERT_TRUE(assembler.Begin(upload.begin).ok());
  ASSERT_TRUE(assembler.Add(Chunk(upload, 0, 8)).ok());
  EXPECT_FALSE(budget->Take(8, 0));
  assembler.Discard();
  EXPECT_TRUE(budget->Take(8, 0));
  budget.reset();
}

TEST_F(UploadAssemblerTest, RefusesChunksOutOfOrder) {
  const TestUpload upload = Sample(1);
  ExpectChunkError(Chunk(upload, 0, 8), "[BAD_MESSAGE]");  // not begun
  ASSERT_TRUE(assembler_.Begin(upload.begin).ok());
  ExpectChunkError(Chunk(upload, 8, 8), "[BAD_MESSAGE]");
  ASSERT_TRUE(assembler_.Add(Chunk(upload, 0, 8)).ok());
  ExpectChunkError(Chunk(upload, 0, 8), "[BAD_MESSAGE]");
  ExpectChunkError(Chunk(Sample(2), 8, 8), "[BAD_MESSAGE]");
  v1::UploadChunk negative = Chunk(upload, 8, 8);
  negative.set_offset(-1);
  ExpectChunkError(negative, "[BAD_MESSAGE]");
}

TEST_F(UploadAssemblerTest, RefusesMoreAndFewerBytesThanAnnounced) {
  const TestUpload upload = Sample(1);
  ASSERT_TRUE(assembler_.Begin(upload.begin).ok());
  ASSERT_TRUE(assembler_.Add(Chunk(upload, 0, 40)).ok());
  v1::UploadChunk longer = Chunk(upload, 40, 8);
  longer.mutable_data()->push_back('x');
  ExpectChunkError(longer, "[BAD_MESSAGE]");
  EXPECT_THAT(ErrorOf(assembler_.Begin(Sample(2).begin)), StartsWith("[BAD_MESSAGE]")) << "the first is too short";
}

TEST_F(UploadAssemblerTest, RefusesWhatIsTooLarge) {
  v1::UploadChunk chunk = Chunk(Sample(1), 0, 8);
  chunk.set_data(std::string(101, 'x'));
  ExpectChunkError(chunk, "[UPLOAD_TOO_LARGE]");
  TestUpload upload = Sample(1);
  upload.begin.mutable_tensors(0)->set_shape(0, 1'000);
  EXPECT_THAT(ErrorOf(assembler_.Begin(upload.begin)), StartsWith("[UPLOAD_TOO_LARGE]"));
  upload = Sample(2);
  for (int i = 0; i < 2; ++i) *upload.begin.add_tensors() = upload.begin.tensors(0);
  EXPECT_THAT(ErrorOf(assembler_.Begin(upload.begin)), StartsWith("[BAD_MESSAGE]")) << "too many tensors";
  upload = Sample(3);
  for (int i = 0; i < 20; ++i) upload.begin.mutable_tensors(0)->add_shape(1);
  EXPECT_THAT(ErrorOf(assembler_.Begin(upload.begin)), StartsWith("[BAD_MESSAGE]")) << "too many dimensions";
  upload = Sample(4);
  upload.begin.mutable_tensors(0)->set_name(std::string(300, 'x'));
  EXPECT_THAT(ErrorOf(assembler_.Begin(upload.begin)), StartsWith("[BAD_MESSAGE]")) << "too long a name";
}

TEST_F(UploadAssemblerTest, RefusesIdsThatDoNotRiseAndUploadsOfNothing) {
  ASSERT_TRUE(assembler_.Begin(Sample(5).begin).ok());
  assembler_.Discard();
  ASSERT_TRUE(assembler_.Add(Chunk(Sample(5), 0, 48)).ok());
  EXPECT_THAT(ErrorOf(assembler_.Begin(Sample(5).begin)), StartsWith("[BAD_MESSAGE]"));
  v1::UploadBegin nothing;
  nothing.set_upload_id(6);
  EXPECT_THAT(ErrorOf(assembler_.Begin(nothing)), StartsWith("[BAD_MESSAGE]"));
}

TEST_F(UploadAssemblerTest, PassesOverATensorThatNobodyCanRead) {
  TestUpload upload = Sample(1);
  upload.begin.mutable_tensors(0)->set_dtype(static_cast<v1::DataType>(77));
  auto outcome = assembler_.Begin(upload.begin);
  ASSERT_TRUE(outcome.ok());
  EXPECT_THAT(std::string(outcome->refused.message()), StartsWith("[BAD_DTYPE]"));
  EXPECT_TRUE(assembler_.Add(Chunk(upload, 0, 48)).ok());
  upload = Sample(2);
  upload.begin.mutable_tensors(0)->set_shape(0, -3);
  outcome = assembler_.Begin(upload.begin);
  ASSERT_TRUE(outcome.ok());
  EXPECT_THAT(std::string(outcome->refused.message()), StartsWith("[BAD_SHAPE]"));
  EXPECT_TRUE(assembler_.Begin(Sample(3).begin).ok()) << "the stream goes on";
}

TEST_F(UploadAssemblerTest, DoesNotReserveWhatIsOnlyAnnounced) {
  UploadLimits generous;
  UploadAssembler assembler(generous, &budget_);
  TestUpload upload = Sample(1);
  upload.begin.mutable_tensors(0)->set_shape(0, int64_t{1} << 27);  // 2 GiB
  EXPECT_TRUE(assembler.Begin(upload.begin).ok());
  EXPECT_TRUE(budget_.Take(250, 0)) << "nothing is held";
}

TEST_F(UploadAssemblerTest, RefusesAnUploadThatNoBudgetIsLeftForAndGivesBackWhatItHeld) {
  UploadAssembler other(limits_, &budget_);
  const TestUpload upload = Sample(1);
  ASSERT_TRUE(budget_.Take(250, 0));
  ASSERT_TRUE(budget_.Take(125, 0));
  ASSERT_TRUE(budget_.Take(55, 0));
  ASSERT_TRUE(assembler_.Begin(upload.begin).ok());
  ASSERT_TRUE(assembler_.Add(Chunk(upload, 0, 30))->refused.ok());
  const auto outcome = assembler_.Add(Chunk(upload, 30, 10));
  ASSERT_TRUE(outcome.ok());
  EXPECT_THAT(std::string(outcome->refused.message()), StartsWith("[QUEUE_FULL]"));
  EXPECT_TRUE(budget_.Take(30, 0)) << "what it held is given back";
  budget_.Return(460);
  ASSERT_TRUE(assembler_.Add(Chunk(upload, 40, 8)).ok());
  EXPECT_TRUE(assembler_.Begin(Sample(2).begin).ok());
}

TEST_F(UploadAssemblerTest, LeavesToOtherStreamsAsMuchAsItTakes) {
  UploadLimits generous;
  UploadAssembler greedy(generous, &budget_), other(limits_, &budget_);
  TestUpload large = Sample(1);
  large.begin.mutable_tensors(0)->set_shape(0, int64_t{1} << 27);
  large.bytes.resize(500);
  ASSERT_TRUE(greedy.Begin(large.begin).ok());
  ASSERT_TRUE(greedy.Add(Chunk(large, 0, 250))->refused.ok());
  EXPECT_TRUE(greedy.unfinished());
  const TestUpload small = Sample(1);
  ASSERT_TRUE(other.Begin(small.begin).ok());
  EXPECT_TRUE(other.Add(Chunk(small, 0, small.bytes.size()))->complete.has_value()) << "others feel nothing";
  EXPECT_FALSE(other.unfinished());
  EXPECT_THAT(std::string(greedy.Add(Chunk(large, 250, 10))->refused.message()), StartsWith("[QUEUE_FULL]"));
  EXPECT_FALSE(greedy.unfinished());
}

TEST_F(UploadAssemblerTest, AnUploadOfNoBytesIsCompleteAtOnce) {
  TestUpload upload = Sample(1);
  upload.begin.clear_tensors();
  auto outcome = assembler_.Begin(upload.begin);
  ASSERT_TRUE(outcome.ok());
  ASSERT_TRUE(outcome->complete.has_value());
  EXPECT_TRUE(outcome->complete->tensors.empty());
  EXPECT_TRUE(assembler_.Begin(Sample(2).begin).ok());
}

}  // namespace
}  // namespace egeria::controller

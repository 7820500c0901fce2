#include "tests/support/fake_controller.h"

#include <memory>
#include <string>

#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace egeria::testing {
namespace {

class FakeControllerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fake_.Start().ok());
    Connect();
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }

  // A channel to a Unix socket is one connection.
  void Connect() {
    auto address = rpc::ParseAddress(fake_.address());
    ASSERT_TRUE(address.ok());
    auto channel = rpc::MakeChannel(*address, {});
    ASSERT_TRUE(channel.ok());
    stub_ = v1::Controller::NewStub(*channel);
  }

  static v1::WorkerMessage Open(int64_t generation) {
    v1::WorkerMessage message;
    message.mutable_open()->set_generation(generation);
    return message;
  }
  static v1::WorkerMessage HeartbeatAt(int64_t watermark) {
    v1::WorkerMessage message;
    message.mutable_heartbeat()->set_plan_watermark(watermark);
    return message;
  }

  TempFolder folder_;
  FakeController fake_{folder_ / "socket"};
  std::unique_ptr<v1::Controller::Stub> stub_;
  grpc::ClientContext context_;
};

TEST_F(FakeControllerTest, RecordsRegistrationsAndAnswersAsTold) {
  v1::RegisterJobRequest request;
  request.set_training_job("digits");
  v1::RegisterJobResponse response;
  ASSERT_TRUE(stub_->RegisterJob(&context_, request, &response).ok());
  EXPECT_EQ(response.heartbeat_interval().nanos(), 50'000'000);
  EXPECT_EQ(fake_.record().registrations.at(0).training_job(), "digits");

  fake_.RefuseRegistrations(absl::NotFoundError("[GONE] away"));
  grpc::ClientContext second;
  second.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  EXPECT_EQ(rpc::FromGrpc(stub_->RegisterJob(&second, request, &response)), absl::NotFoundError("[GONE] away"));
}

TEST_F(FakeControllerTest, AnswersHeartbeatsWithThePlansAboveTheWatermark) {
  std::vector<v1::Plan> plans(3);
  for (int i = 0; i < 3; ++i) plans[i].set_plan_id(i + 1);
  fake_.SetPlans(plans);
  auto stream = stub_->Stream(&context_);
  stream->Write(Open(4));
  stream->Write(HeartbeatAt(1));
  v1::ControllerMessage message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(message.directive().generation(), 4);
  ASSERT_EQ(message.directive().plans_size(), 2);
  EXPECT_EQ(message.directive().plans(0).plan_id(), 2);

  v1::Directive directive;
  directive.mutable_sampling()->set_module(5);
  fake_.SetDirective(directive);  // unasked
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(message.directive().sampling().module(), 5);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(FakeControllerTest, PutsUploadsTogetherAndNoticesGaps) {
  auto stream = stub_->Stream(&context_);
  stream->Write(Open(0));
  v1::WorkerMessage message;
  message.mutable_upload_begin()->set_upload_id(1);
  v1::TensorSpec* tensor = message.mutable_upload_begin()->add_tensors();
  tensor->set_dtype(v1::DATA_TYPE_UINT8);
  tensor->add_shape(4);
  stream->Write(message);
  message.mutable_upload_chunk()->set_upload_id(1);
  message.mutable_upload_chunk()->set_data("abc");
  stream->Write(message);
  message.mutable_upload_chunk()->set_offset(3);
  message.mutable_upload_chunk()->set_data("d");
  stream->Write(message);
  ASSERT_TRUE(fake_.WaitUntil([](const auto& record) { return record.uploads.size() == 1; }));
  EXPECT_EQ(fake_.record().uploads[0].bytes, "abcd");
  EXPECT_TRUE(fake_.record().violations.empty());

  stream->Write(message);  // belongs to no upload
  EXPECT_TRUE(fake_.WaitUntil([](const auto& record) { return record.violations.size() == 1; }));
  stream->WritesDone();
  stream->Finish();
}

TEST_F(FakeControllerTest, BreaksStreamsWhenItStopsAndCanStartAgain) {
  auto stream = stub_->Stream(&context_);
  stream->Write(Open(0));
  ASSERT_TRUE(fake_.WaitUntil([](const auto& record) { return record.opens.size() == 1; }));
  fake_.Stop();
  v1::ControllerMessage message;
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_FALSE(stream->Finish().ok());
  ASSERT_TRUE(fake_.Start().ok());
  stream.reset();
  Connect();
  grpc::ClientContext second;
  second.set_wait_for_ready(true);
  second.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::RegisterJobResponse response;
  EXPECT_TRUE(stub_->RegisterJob(&second, {}, &response).ok());
}

}  // namespace
}  // namespace egeria::testing

#include "tests/worker/session/toy_rank.h"

#include <utility>

#include "ATen/ops/cross_entropy_loss.h"
#include "common/base/status.h"
#include "gtest/gtest.h"

namespace egeria::testing {

ToyRank::ToyRank(const worker::GroupMember& member, FakeLine* line, Options options)
    : member_(member), learning_rate_(options.learning_rate), model_(ToyModel::Make(kBlocks, 3, options.dropout)) {
  if (member.world_size > 1) {
    training_ = GlooGroup(member, "training");
    commit_ = GlooGroup(member, "commit");
  }
  for (auto& group : model_->optimizer->param_groups()) group.options().set_lr(learning_rate_);
  reducer_ = std::make_unique<worker::GradientReducer>(training_);
  worker::SessionParts parts;
  parts.freezer = model_->freezer.get();
  parts.reducer = reducer_.get();
  if (line != nullptr) parts.agent = std::make_unique<FakeAgent>(line);
  parts.plans = std::move(options.plans);
  parts.commit_group = commit_;
  for (const worker::LayerModule& module : model_->modules) parts.snapshot_tensors.push_back(module.parameters());
  auto session = worker::Session::Start(std::move(parts));
  EGERIA_CHECK(session.ok());
  session_ = *std::move(session);
}

ToyBatch ToyRank::Batch(int64_t step, int rank, int64_t samples) {
  return MakeToyBatch(samples, 100 * static_cast<uint64_t>(step) + static_cast<uint64_t>(rank));
}

void ToyRank::Step(int64_t samples) {
  const ToyBatch batch = Batch(session_->step(), member_.rank, samples);
  for (const worker::LayerModule& module : model_->modules) module.SetTraining(true);
  model_->optimizer->zero_grad();
  session_->BeginStep();
  const at::Tensor loss = at::cross_entropy_loss(session_->Forward(batch.images), batch.labels);
  session_->BeforeBackward(loss);
  loss.backward();
  session_->AfterBackward([&batch](const at::Tensor& output, int64_t begin, int64_t end) {
    return at::cross_entropy_loss(output, batch.labels.slice(0, begin, end));
  });
  model_->optimizer->step();
  const absl::Status status = session_->EndStep(loss, {learning_rate_});
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace egeria::testing

#include "tests/worker/session/toy_rank.h"

#include <utility>

#include "ATen/ops/cross_entropy_loss.h"
#include "common/base/status.h"
#include "gtest/gtest.h"

namespace egeria::testing {
namespace {

// Calls `take` with each parameter and buffer of the model, and whether it is a parameter.
template <typename Take>
void ForEachTensor(const ToyModel& model, Take take) {
  for (const worker::LayerModule& module : model.modules) {
    for (const worker::NamedTensor& parameter : module.parameters()) take(parameter.tensor, true);
    for (const worker::NamedTensor& buffer : module.buffers()) take(buffer.tensor, false);
  }
}

void Restore(const ToyRank::Saved& saved, ToyModel* model) {
  at::NoGradGuard no_gradients;
  size_t tensor = 0, momentum = 0;
  ForEachTensor(*model, [&](const at::Tensor& target, bool is_parameter) {
    target.copy_(saved.tensors[tensor++]);
    if (!is_parameter) return;
    if (const at::Tensor& of_target = saved.momenta[momentum++]; of_target.defined()) {
      auto state = std::make_unique<torch::optim::SGDParamState>();
      state->momentum_buffer(of_target.clone());
      model->optimizer->state()[target.unsafeGetTensorImpl()] = std::move(state);
    }
  });
}

}  // namespace

ToyRank::ToyRank(const worker::GroupMember& member, FakeLine* line, Options options)
    : member_(member), learning_rate_(options.learning_rate), model_(ToyModel::Make(kBlocks, 3, options.dropout)) {
  if (member.world_size > 1) {
    training_ = GlooGroup(member, "training");
    commit_ = GlooGroup(member, "commit");
  }
  for (auto& group : model_->optimizer->param_groups()) group.options().set_lr(learning_rate_);
  if (options.on_unfreeze) {
    freezer_ = std::make_unique<worker::ModuleFreezer>(&model_->modules, std::move(options.on_unfreeze));
  }
  reducer_ = std::make_unique<worker::GradientReducer>(training_);
  worker::SessionParts parts;
  parts.freezer = freezer_ != nullptr ? freezer_.get() : model_->freezer.get();
  parts.reducer = reducer_.get();
  if (line != nullptr) parts.agent = std::make_unique<FakeAgent>(line);
  parts.plans = std::move(options.plans);
  parts.resync = std::move(options.resync);
  parts.freeze_first = options.freeze_first;
  parts.commit_group = commit_;
  for (const worker::LayerModule& module : model_->modules) parts.snapshot_tensors.push_back(module.parameters());
  if (options.resume != nullptr) {
    Restore(*options.resume, model_.get());
    parts.step = options.resume->step;
    parts.frozen_prefix = options.resume->frozen_prefix;
    parts.applied_plan = options.resume->applied_plan;
  }
  auto session = worker::Session::Start(std::move(parts));
  EGERIA_CHECK(session.ok());
  session_ = *std::move(session);
}

ToyBatch ToyRank::Batch(int64_t step, int rank, int64_t samples) {
  return MakeToyBatch(samples, 100 * static_cast<uint64_t>(step) + static_cast<uint64_t>(rank));
}

void ToyRank::Step(int64_t samples) {
  const absl::Status status = TryStep(samples);
  EXPECT_TRUE(status.ok()) << status;
}

absl::Status ToyRank::TryStep(int64_t samples) {
  const ToyBatch batch = Batch(session_->step(), member_.rank, samples);
  for (const worker::LayerModule& module : model_->modules) module.SetTraining(true);
  model_->optimizer->zero_grad();
  session_->BeginStep();
  const at::Tensor loss = at::cross_entropy_loss(session_->Forward(batch.images), batch.labels);
  session_->BeforeBackward(loss);
  loss.backward();
  session_->AfterBackward();
  model_->optimizer->step();
  loss_ = loss.item<float>();
  return session_->EndStep(loss, {learning_rate_});
}

ToyRank::Saved ToyRank::Save() {
  Saved saved{session_->step(), session_->totals().frozen_prefix, session_->applied_plan(), {}, {}};
  ForEachTensor(*model_, [&](const at::Tensor& tensor, bool is_parameter) {
    saved.tensors.push_back(tensor.detach().clone());
    if (!is_parameter) return;
    const at::Tensor momentum = model_->Momentum(tensor);
    saved.momenta.push_back(momentum.defined() ? momentum.clone() : at::Tensor());
  });
  return saved;
}

}  // namespace egeria::testing

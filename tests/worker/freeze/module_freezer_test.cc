#include "worker/freeze/module_freezer.h"

#include <stdexcept>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/toy_model.h"

namespace egeria::worker {
namespace {

using ::egeria::testing::BitEqual;
using ::egeria::testing::MakeToyBatch;
using ::egeria::testing::ToyModel;

void TrainStep(ToyModel* model, uint64_t seed) {
  const auto batch = MakeToyBatch(8, seed);
  for (const LayerModule& module : model->modules) module.SetTraining(true);  // a loop does this each epoch
  at::Tensor output = batch.images;
  for (const LayerModule& module : model->modules) output = module.Run(output);
  model->optimizer->zero_grad();
  at::cross_entropy_loss(output, batch.labels).backward();
  model->optimizer->step();
}

TEST(ModuleFreezer, FrozenModulesAndTheirOptimizerStateStayEqualToTheBit) {
  const auto model = ToyModel::Make(4, 1);
  for (uint64_t s = 0; s < 5; ++s) TrainStep(model.get(), s);
  ASSERT_TRUE(model->freezer->Apply(2).ok());
  const auto frozen = model->State(0, 2), active = model->State(2, 5);
  for (uint64_t s = 100; s < 150; ++s) TrainStep(model.get(), s);
  EXPECT_TRUE(BitEqual(model->State(0, 2), frozen));
  EXPECT_FALSE(BitEqual(model->State(2, 5), active));
}

TEST(ModuleFreezer, AStaleGradientDoesNotMoveAFrozenWeight) {
  const auto model = ToyModel::Make(2, 1);
  TrainStep(model.get(), 0);
  const auto batch = MakeToyBatch(8, 1);
  at::Tensor output = batch.images;
  for (const LayerModule& module : model->modules) output = module.Run(output);
  at::cross_entropy_loss(output, batch.labels).backward();
  ASSERT_TRUE(model->freezer->Apply(1).ok());  // between backward and step, at the worst possible time
  const auto frozen = model->State(0, 1);
  model->optimizer->step();
  EXPECT_TRUE(BitEqual(model->State(0, 1), frozen));
}

TEST(ModuleFreezer, ParametersStayInTheirOptimizerGroups) {
  const auto model = ToyModel::Make(3, 1);
  const size_t count = model->optimizer->param_groups()[0].params().size();
  ASSERT_TRUE(model->freezer->Apply(3).ok());
  EXPECT_EQ(model->optimizer->param_groups()[0].params().size(), count);
}

TEST(ModuleFreezer, PinsModesThroughLaterTrainCallsAndReleasesThem) {
  const auto model = ToyModel::Make(2, 1);
  const auto training = [&](size_t module) {
    bool any = false, all = true;
    for (const auto& submodule : model->modules[module].blocks()[0]->modules()) {
      any |= submodule->is_training();
      all &= submodule->is_training();
    }
    EXPECT_EQ(any, all);
    return all;
  };
  ASSERT_TRUE(model->freezer->Apply(1).ok());
  EXPECT_FALSE(training(0));
  for (const LayerModule& module : model->modules) module.SetTraining(true);
  EXPECT_FALSE(training(0));
  EXPECT_TRUE(training(1));
  for (const LayerModule& module : model->modules) module.SetTraining(false);
  ASSERT_TRUE(model->freezer->Apply(0).ok());
  EXPECT_FALSE(training(0)) << "eval() was asked for while it was frozen";
  for (const LayerModule& module : model->modules) module.SetTraining(true);
  EXPECT_TRUE(training(0));
}

TEST(ModuleFreezer, UnfreezingRestoresWhatAskedForGradientsAndResetsMomentum) {
  const auto model = ToyModel::Make(3, 1);
  const at::Tensor never = model->modules[0].parameters()[1].tensor;
  never.set_requires_grad(false);
  std::vector<at::Tensor> unfrozen;
  ModuleFreezer freezer(&model->modules, [&](const std::vector<at::Tensor>& parameters) { unfrozen = parameters; });
  ASSERT_TRUE(freezer.Apply(2).ok());
  EXPECT_TRUE(unfrozen.empty());
  const auto change = freezer.Apply(0);
  ASSERT_TRUE(change.ok());
  EXPECT_TRUE(change->unfreezes());
  EXPECT_FALSE(never.requires_grad());
  EXPECT_EQ(unfrozen.size(), model->modules[0].parameters().size() + model->modules[1].parameters().size() - 1);
  for (const at::Tensor& parameter : unfrozen) EXPECT_TRUE(parameter.requires_grad());
}

TEST(ModuleFreezer, UnfrozenModulesStartWithoutMomentumAndOthersKeepTheirs) {
  const auto model = ToyModel::Make(2, 1);
  for (uint64_t s = 0; s < 3; ++s) TrainStep(model.get(), s);
  ASSERT_TRUE(model->freezer->Apply(1).ok());
  EXPECT_TRUE(model->Momentum(model->modules[0].parameters()[0].tensor).defined());
  ASSERT_TRUE(model->freezer->Apply(0).ok());
  EXPECT_FALSE(model->Momentum(model->modules[0].parameters()[0].tensor).defined());
  EXPECT_TRUE(model->Momentum(model->modules[1].parameters()[0].tensor).defined());
}

TEST(ModuleFreezer, TakesBackAFreezeWithoutLosingMomentum) {
  const auto model = ToyModel::Make(3, 1);
  model->modules[0].parameters()[1].tensor.set_requires_grad(false);
  ModuleFreezer freezer(&model->modules, [](const std::vector<at::Tensor>&) { FAIL() << "nothing has unfrozen"; });
  for (uint64_t s = 0; s < 3; ++s) TrainStep(model.get(), s);
  const auto before = model->State(0, 4);
  ASSERT_TRUE(freezer.Apply(2).ok());
  freezer.TakeBack(0);
  EXPECT_EQ(freezer.frozen_prefix(), 0);
  EXPECT_TRUE(BitEqual(model->State(0, 4), before));
  EXPECT_FALSE(model->modules[0].parameters()[1].tensor.requires_grad());
  EXPECT_TRUE(model->modules[1].parameters()[0].tensor.requires_grad());
  for (const auto& submodule : model->modules[0].blocks()[0]->modules()) EXPECT_TRUE(submodule->is_training());
}

TEST(ModuleFreezer, TakesBackAnUnfreezeThatStoppedHalfWay) {
  const auto model = ToyModel::Make(3, 1);
  ModuleFreezer freezer(&model->modules, [](const std::vector<at::Tensor>&) { throw std::runtime_error("no"); });
  ASSERT_TRUE(freezer.Apply(2).ok());
  EXPECT_ANY_THROW(freezer.Apply(1).IgnoreError());
  freezer.TakeBack(2);
  EXPECT_EQ(freezer.frozen_prefix(), 2);
  const auto frozen = model->State(0, 2);
  for (uint64_t s = 0; s < 3; ++s) TrainStep(model.get(), s);
  EXPECT_TRUE(BitEqual(model->State(0, 2), frozen));
}

TEST(ModuleFreezer, TheLastModuleNeverFreezes) {
  const auto model = ToyModel::Make(2, 1);
  EXPECT_THAT(std::string(model->freezer->Apply(3).status().message()), ::testing::HasSubstr("[BAD_PREFIX]"));
  EXPECT_FALSE(model->freezer->Apply(-1).ok());
  EXPECT_EQ(model->freezer->frozen_prefix(), 0);
  EXPECT_TRUE(model->freezer->Apply(2).ok());
}

TEST(ModuleFreezer, CountsTheFrozenShareOfParameters) {
  const auto model = ToyModel::Make(2, 1);
  int64_t total = 0;
  for (const LayerModule& module : model->modules) total += module.parameter_count();
  ASSERT_TRUE(model->freezer->Apply(1).ok());
  EXPECT_DOUBLE_EQ(model->freezer->frozen_share(), static_cast<double>(model->modules[0].parameter_count()) / total);
  EXPECT_EQ(model->freezer->active_parameters().size(),
            model->modules[1].parameters().size() + model->modules[2].parameters().size());
}

TEST(EvalModeGuard, RestoresAMixtureOfModes) {
  const auto model = ToyModel::Make(1, 1);
  const auto block = model->modules[0].blocks()[0];
  block->named_modules()["norm"]->eval();
  {
    EvalModeGuard eval({block});
    for (const auto& submodule : block->modules()) EXPECT_FALSE(submodule->is_training());
  }
  EXPECT_TRUE(block->is_training());
  EXPECT_TRUE(block->named_modules()["conv"]->is_training());
  EXPECT_FALSE(block->named_modules()["norm"]->is_training());
}

TEST(EvalModeGuard, DoesNotChangeWhatAPinnedBlockReturnsTo) {
  const auto model = ToyModel::Make(1, 1);
  const auto block = model->modules[0].blocks()[0];
  block->train(true);
  block->Pin();
  {
    EvalModeGuard eval({block});
  }
  EXPECT_FALSE(block->is_training());
  block->Unpin();
  EXPECT_TRUE(block->is_training());
}

}  // namespace
}  // namespace egeria::worker

#include "worker/trainer/step_shares.h"

#include <memory>
#include <numeric>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "gtest/gtest.h"
#include "tests/support/toy_model.h"

namespace egeria::trainer {
namespace {

using ::egeria::testing::BitEqual;
using ::egeria::testing::ToyModel;

TEST(MeasureStepShares, GivesEveryModuleAPartOfTheStep) {
  const std::unique_ptr<ToyModel> model = ToyModel::Make(3, 1);
  const std::vector<double> shares = MeasureStepShares(model->modules, {8, 3, 6, 6}, c10::kCPU);
  ASSERT_EQ(shares.size(), 4u);
  for (const double share : shares) {
    EXPECT_GT(share, 0);
    EXPECT_LT(share, 1);
  }
  EXPECT_LT(std::accumulate(shares.begin(), shares.end(), 0.0), 1) << "the forward pass is no module's to save";
}

TEST(MeasureStepShares, ChangesNothing) {
  const std::unique_ptr<ToyModel> model = ToyModel::Make(3, 1);
  const auto everything = [&] {
    std::vector<at::Tensor> state = model->State(0, 4);
    state.push_back(at::detail::getDefaultCPUGenerator().get_state());
    for (const auto& module : model->modules) {
      for (const auto& parameter : module.parameters()) EXPECT_FALSE(parameter.tensor.grad().defined());
    }
    return state;
  };
  const std::vector<at::Tensor> before = everything();
  MeasureStepShares(model->modules, {8, 3, 6, 6}, c10::kCPU);
  EXPECT_TRUE(BitEqual(before, everything()));
}

}  // namespace
}  // namespace egeria::trainer

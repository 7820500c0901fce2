#include "common/plasticity/compared.h"

#include <string>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/eye.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::plasticity {
namespace {

using ::testing::HasSubstr;

constexpr auto kSp = ActivationMetric::kSpLoss;
constexpr auto kActivationNorm = ActivationMetric::kActivationNorm;

TEST(Compared, OfTheSpLossIsTheMatrixOfTheRowsProducts) {
  const at::Tensor rows = at::tensor({1., 2., 3., -1., 0., 2.}).view({2, 3, 1});
  EXPECT_TRUE(at::equal(Compared(kSp, rows), at::tensor({14.F, 5.F, 5.F, 5.F}).view({2, 2})));
  EXPECT_TRUE(at::equal(Compared(kActivationNorm, rows), rows.view({2, 3}).to(at::kFloat)));
}

TEST(Compared, LeavesNoGradientBehind) {
  EXPECT_FALSE(Compared(kActivationNorm, at::ones({2, 3}).requires_grad_()).requires_grad());
}

TEST(DistanceOf, IsThatOfTheNumbers) {
  const at::Tensor a = at::randn({4, 4}), b = at::randn({4, 4});
  const auto numbers = [](const at::Tensor& tensor) {
    return std::vector<float>(tensor.data_ptr<float>(), tensor.data_ptr<float>() + tensor.numel());
  };
  for (const ActivationMetric metric : {kSp, kActivationNorm}) {
    EXPECT_EQ(DistanceOf(metric, a, b).value(), Distance(metric, numbers(a), numbers(b), 4).value());
    EXPECT_EQ(DistanceOf(metric, a.t(), b.t()).value(),
              Distance(metric, numbers(a.t().contiguous()), numbers(b.t().contiguous()), 4).value());
  }
}

TEST(DistanceOf, RefusesWhatTellsNothing) {
  const auto refusal = [](ActivationMetric metric, const at::Tensor& a, const at::Tensor& b) {
    return std::string(DistanceOf(metric, a, b).status().message());
  };
  EXPECT_THAT(refusal(kSp, at::eye(2), at::eye(3)), HasSubstr("[BAD_SHAPE]"));
  EXPECT_THAT(refusal(kSp, at::ones({}), at::ones({})), HasSubstr("[BAD_SHAPE]"));
  EXPECT_THAT(refusal(kActivationNorm, at::zeros({2, 3}), at::ones({2, 2})), HasSubstr("[BAD_SHAPE]"));
  EXPECT_THAT(refusal(kSp, at::eye(2), at::eye(2) / 0), HasSubstr("[NOT_FINITE]"));
}

}  // namespace
}  // namespace egeria::plasticity

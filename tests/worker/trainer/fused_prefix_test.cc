// The native trainer's frozen blocks in inference form.
#include "worker/session/fused_prefix.h"

#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/randn.h"
#include "gtest/gtest.h"
#include "worker/freeze/layer_module.h"
#include "worker/trainer/model/models.h"

namespace egeria::trainer {
namespace {

using worker::FrozenPrefix;
using worker::FusedPrefix;
using worker::LayerModule;

constexpr double kWhateverItTakes = std::numeric_limits<double>::infinity();

// The layer modules of a model, all but the head frozen, with statistics of some batches.
class FusedPrefixTest : public ::testing::TestWithParam<const char*> {
 protected:
  FusedPrefixTest() {
    at::manual_seed(1);
    at::set_num_threads(1);
    const auto blocks = MakeModel(GetParam(), 3, 10);
    EXPECT_TRUE(blocks.ok());
    modules_ = *worker::MakeLayerModules(*blocks, {});
    const at::NoGradGuard no_gradients;
    for (int i = 0; i < 3; ++i) {
      at::Tensor output = Batch(8);
      for (const LayerModule& module : modules_) output = module.Run(output);
    }
    for (const LayerModule& module : frozen()) module.Pin();
  }
  static at::Tensor Batch(int64_t samples) { return at::randn({samples, 3, 8, 8}); }
  std::span<const LayerModule> frozen() const { return std::span(modules_).first(modules_.size() - 1); }
  at::Tensor Exact(const at::Tensor& input) const { return FrozenPrefix(frozen()).Run(input); }
  static double Difference(const at::Tensor& one, const at::Tensor& other) {
    return ((one - other).abs().max() / other.abs().max()).item<double>();
  }

  std::vector<LayerModule> modules_;
};

TEST_P(FusedPrefixTest, GivesWhatTheBlocksGiveButForRoundings) {
  FusedPrefix fused(/*tells=*/true, kWhateverItTakes);
  fused.Follow(frozen());
  const at::Tensor first = Batch(8), whole = first.clone();
  EXPECT_TRUE(at::equal(fused.Run(first), Exact(first)));  // the pass in which it is measured
  ASSERT_TRUE(fused.is_fused());
  for (const int64_t samples : {8, 3, 1}) {
    const at::Tensor input = samples == 8 ? first : Batch(samples);
    const at::Tensor output = fused.Run(input);
    EXPECT_LT(Difference(output, Exact(input)), 1e-5);
    EXPECT_TRUE(output.is_contiguous());
    EXPECT_FALSE(output.requires_grad());
  }
  EXPECT_TRUE(at::equal(first, whole));
  const at::Tensor last = first.contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_LT(Difference(fused.Run(last), Exact(first)), 1e-5);
  EXPECT_TRUE(at::equal(last, whole));
}

TEST_P(FusedPrefixTest, WeightsThatSomebodyWritesToCountAtOnce) {
  FusedPrefix fused(/*tells=*/false, kWhateverItTakes);
  fused.Follow(frozen());
  const at::Tensor input = Batch(4);
  fused.Run(input);
  const at::NoGradGuard no_gradients;
  for (const LayerModule& module : frozen()) {
    for (const worker::NamedTensor& entry : {module.parameters().front(), module.buffers().front()}) {
      at::Tensor tensor = entry.tensor;
      const at::Tensor saved = tensor.clone();
      const at::Tensor before = Exact(input);
      tensor.add_(0.5);
      EXPECT_GT(Difference(before, Exact(input)), 1e-4) << entry.name;
      EXPECT_LT(Difference(fused.Run(input), Exact(input)), 1e-4) << entry.name;
      tensor.data_ptr<float>()[0] += 3;  // no counter sees that
      EXPECT_LT(Difference(fused.Run(input), Exact(input)), 1e-4) << entry.name;
      tensor.copy_(saved);
    }
  }
}

TEST_P(FusedPrefixTest, FormsThatDoNotPayAreNotUsed) {
  FusedPrefix fused(/*tells=*/false, /*worth=*/0);
  fused.Follow(frozen());
  const at::Tensor input = Batch(4);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(fused.Run(input), Exact(input)));
  EXPECT_FALSE(fused.is_fused());
}

TEST_P(FusedPrefixTest, ABlockWithoutAFormLeavesAllAsTheyAre) {
  FusedPrefix fused(/*tells=*/false, kWhateverItTakes);
  fused.Follow(modules_);  // with the head, which has none
  for (const LayerModule& module : modules_) module.SetTraining(false);
  const at::Tensor input = Batch(4);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(fused.Run(input), FrozenPrefix(modules_).Run(input)));
  EXPECT_FALSE(fused.is_fused());
}

INSTANTIATE_TEST_SUITE_P(Models, FusedPrefixTest, ::testing::Values("resnet20", "digitsnet"));

}  // namespace
}  // namespace egeria::trainer

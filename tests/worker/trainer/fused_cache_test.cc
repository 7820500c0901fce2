// The cache keeps what the native trainer's frozen blocks give in inference form.
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/randn.h"
#include "gtest/gtest.h"
#include "tests/support/cache_daemon.h"
#include "worker/freeze/layer_module.h"
#include "worker/session/frozen_forward.h"
#include "worker/session/fused_prefix.h"
#include "worker/session/row_proof.h"
#include "worker/trainer/model/models.h"

namespace egeria::trainer {
namespace {

using ::egeria::testing::CacheDaemon;
using ::egeria::testing::WaitUntil;
using worker::FrozenForward;
using worker::FusedPrefix;
using worker::LayerModule;
using worker::SameBits;

constexpr int64_t kPassSize = 8;
constexpr char kFusedJob[] = "0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11";

class FusedCacheTest : public ::testing::Test {
 protected:
  FusedCacheTest() {
    at::manual_seed(1);
    at::set_num_threads(1);
    const auto blocks = MakeModel("resnet20", 3, 10);
    EXPECT_TRUE(blocks.ok());
    modules_ = *worker::MakeLayerModules(*blocks, {});
    count_ = static_cast<int>(modules_.size()) - 1;
    for (int64_t i = 0; i < 4 * kPassSize; ++i) images_.push_back(at::randn({1, 3, 8, 8}));
    for (const LayerModule& module : std::span(modules_).first(static_cast<size_t>(count_))) module.Pin();
    fused_.Follow(std::span(modules_).first(static_cast<size_t>(count_)));
    Start();
  }
  void Start() {
    forward_.reset();
    FrozenForward::Options options;
    options.cache = *cache::ActivationCache::Start(
        {.address = daemon_.address(), .job_id = kFusedJob, .patience = absl::Seconds(20)});
    EXPECT_TRUE(WaitUntil([&] { return options.cache->client().attached(); }));
    options.always = true;
    options.tells = false;
    cache_ = options.cache;
    forward_ = std::make_unique<FrozenForward>(std::move(options));
    forward_->Follow(modules_, count_);
  }
  at::Tensor Batch(const std::vector<uint64_t>& ids) const {
    std::vector<at::Tensor> rows;
    for (const uint64_t id : ids) rows.push_back(images_[id]);
    return at::cat(rows);
  }
  static std::vector<uint64_t> Ids(uint64_t first) {
    std::vector<uint64_t> ids(kPassSize);
    std::iota(ids.begin(), ids.end(), first);
    return ids;
  }
  at::Tensor Pass(const std::vector<uint64_t>& ids, FusedPrefix* fused) {
    const at::Tensor batch = Batch(ids);
    at::Tensor output = forward_->Run(batch, {ids, batch}, fused);
    cache_->client().Flush(absl::Seconds(10));
    return output;
  }

  CacheDaemon daemon_;
  std::vector<LayerModule> modules_;
  int count_ = 0;
  std::vector<at::Tensor> images_;
  FusedPrefix fused_{/*tells=*/false, /*worth=*/std::numeric_limits<double>::infinity()};
  std::shared_ptr<cache::ActivationCache> cache_;
  std::unique_ptr<FrozenForward> forward_;
};

TEST_F(FusedCacheTest, HitsMissesAndAuditsGiveWhatTheFormGives) {
  Pass(Ids(0), &fused_);  // the form is made, and nothing kept
  ASSERT_TRUE(fused_.is_fused());
  EXPECT_EQ(forward_->totals().proofs, 0);
  // Whole batches, samples of others, and batches in which some are missing.
  const std::vector<std::vector<uint64_t>> passes = {Ids(0),  Ids(0),  Ids(8),  {15, 3, 9, 0, 7, 12, 1, 14},
                                                     Ids(4),  Ids(12), Ids(16), {0, 17, 24, 25, 3, 4, 5, 6},
                                                     Ids(20), Ids(24), Ids(24), {31, 2, 8, 19, 4, 28, 6, 7}};
  for (const std::vector<uint64_t>& ids : passes) {
    EXPECT_TRUE(SameBits(Pass(ids, &fused_), fused_.Run(Batch(ids))));
  }
  const worker::CacheTotals totals = forward_->totals();
  EXPECT_GT(totals.proofs, 0);
  EXPECT_GT(totals.hits, 2 * kPassSize);
  EXPECT_GT(totals.audits, 0);
  EXPECT_EQ(totals.state, "on") << totals.reason;
}

TEST_F(FusedCacheTest, EntriesOfFusedAndExactTrainingsNeverMix) {
  for (FusedPrefix* fused : {&fused_, static_cast<FusedPrefix*>(nullptr), &fused_}) {
    Start();
    for (int i = 0; i < 4; ++i) {
      const at::Tensor output = Pass(Ids(0), fused);
      const at::NoGradGuard no_gradients;
      at::Tensor exact = Batch(Ids(0));
      for (int module = 0; module < count_; ++module) exact = modules_[static_cast<size_t>(module)].Run(exact);
      const bool is_exact = fused == nullptr || (i == 0 && forward_->totals().proofs == 0);
      EXPECT_EQ(SameBits(output, exact), is_exact) << i;
    }
    EXPECT_GT(forward_->totals().hits + forward_->totals().audits, 0);
    EXPECT_EQ(forward_->totals().state, "on") << forward_->totals().reason;
    forward_->Stop(/*finished=*/false);
  }
}

}  // namespace
}  // namespace egeria::trainer

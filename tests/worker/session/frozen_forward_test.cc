#include "worker/session/frozen_forward.h"

#include <signal.h>

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cache_daemon.h"
#include "tests/support/toy_model.h"
#include "torch/nn/modules/conv.h"
#include "worker/cache/client/content_watch.h"
#include "worker/cache/client/tensor_hash.h"
#include "worker/session/row_proof.h"

namespace egeria::worker {
namespace {

using ::egeria::testing::CacheDaemon;
using ::egeria::testing::MakeToyBatch;
using ::egeria::testing::ToyModel;
using ::egeria::testing::WaitUntil;
using ::testing::HasSubstr;

constexpr int kFrozen = 2;
constexpr int64_t kBatch = 8;
constexpr char kJob[] = "0b0e7f6c-5a3e-4d58-9e0e-3c1f6a2b7d11";

std::vector<uint64_t> Ids(uint64_t first, int64_t count = kBatch) {
  std::vector<uint64_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// The image of a sample: always the same.
at::Tensor Images(const std::vector<uint64_t>& ids) {
  std::vector<at::Tensor> images;
  for (const uint64_t id : ids) images.push_back(MakeToyBatch(1, 1'000 + id).images);
  return at::cat(images);
}

class FrozenForwardTest : public ::testing::Test {
 protected:
  FrozenForwardTest() { Freeze(kFrozen); }

  void Freeze(int count) {
    ASSERT_TRUE(model_->freezer->Apply(count).ok());
    if (forward_ != nullptr) forward_->Follow(model_->modules, count);
  }
  // One that has what is frozen now, with the entries of the job.
  void Start(bool always = true, bool samples_repeat = true) {
    forward_.reset();
    FrozenForward::Options options;
    options.cache =
        *cache::ActivationCache::Start({.address = daemon_.address(), .job_id = kJob, .patience = absl::Seconds(20)});
    ASSERT_TRUE(WaitUntil([&] { return options.cache->client().attached(); }));
    options.always = always;
    options.samples_repeat = samples_repeat;
    cache_ = options.cache;
    forward_ = std::make_unique<FrozenForward>(std::move(options));
    forward_->Follow(model_->modules, model_->freezer->frozen_prefix());
  }

  at::Tensor Expected(const at::Tensor& images) const {
    const at::NoGradGuard no_gradients;
    at::Tensor output = images;
    for (int i = 0; i < model_->freezer->frozen_prefix(); ++i) output = model_->modules[i].Run(output);
    return output;
  }
  // A pass, which must give what the modules give; what it offers is in the cache afterwards.
  void Pass(const std::vector<uint64_t>& ids, const at::Tensor& images) {
    const at::Tensor output = forward_->Run(images, {ids, images});
    EXPECT_TRUE(SameBits(output, Expected(images)));
    EXPECT_FALSE(output.requires_grad());
    cache_->client().Flush(absl::Seconds(10));
  }
  void Pass(const std::vector<uint64_t>& ids) { Pass(ids, Images(ids)); }
  // The first pass that could be skipped is compared with what it computes; here it is over.
  void Confirm() {
    Pass(Ids(0));
    Pass(Ids(0));
    ASSERT_EQ(forward_->totals().audits, 1);
  }
  int64_t Misses(const std::string& reason) const {
    const std::map<std::string, int64_t> misses = forward_->totals().misses;
    return misses.contains(reason) ? misses.at(reason) : 0;
  }

  CacheDaemon daemon_;
  std::unique_ptr<ToyModel> model_ = ToyModel::Make(3, 3);
  std::shared_ptr<cache::ActivationCache> cache_;
  std::unique_ptr<FrozenForward> forward_;
};

TEST_F(FrozenForwardTest, SkipsWhatItHasComputedBefore) {
  Start();
  Confirm();
  for (int i = 0; i < 3; ++i) Pass(Ids(0));
  const CacheTotals totals = forward_->totals();
  EXPECT_EQ(totals.passes, 5);
  EXPECT_EQ(totals.passes_skipped, 2) << "the fourth is an audit";
  EXPECT_EQ(totals.hits, 2 * kBatch);
  EXPECT_EQ(totals.audits, 2);
  EXPECT_EQ(totals.proofs, 1);
  EXPECT_EQ(Misses("unproven"), kBatch);
  EXPECT_EQ(totals.state, "on");
}

TEST_F(FrozenForwardTest, PutsBatchesTogetherFromSamplesOfOthers) {
  Start();
  Confirm();
  Pass(Ids(8));
  Pass({15, 3, 9, 0, 7, 12, 1, 14});
  EXPECT_EQ(forward_->totals().hits, kBatch);
}

TEST_F(FrozenForwardTest, AnotherInputOfASampleIsAMiss) {
  Start();
  Confirm();
  for (uint64_t epoch = 1; epoch < 4; ++epoch) Pass(Ids(0), Images(Ids(100 * epoch)));
  EXPECT_EQ(forward_->totals().hits, 0);
  EXPECT_EQ(Misses("other_input"), 3 * kBatch);
}

TEST_F(FrozenForwardTest, ComputesMissingSamplesAloneOnceThatIsKnownToMakeNoDifference) {
  Start();
  Confirm();
  // Whole batches, on which it is proven; torch may compute a single sample by other kernels.
  uint64_t fresh = 100;
  for (; forward_->totals().passes_skipped == 0; ++fresh) {
    ASSERT_LT(fresh, 103u);
    Pass({0, 1, 2, fresh, 4, 5, 6, 7});
  }
  EXPECT_EQ(forward_->totals().hits, kBatch - 1);
  EXPECT_EQ(Misses("absent"), static_cast<int64_t>(fresh - 100));
  EXPECT_EQ(Misses("recomputed"), (forward_->totals().proofs - 1) * (kBatch - 1));
  Pass({100, 1, 2, 3, 4, 5, 6, fresh - 1});
  Pass({fresh - 1, 6, 5, 4, 3, 2, 1, 100});  // an audit, of rows that were computed alone
  EXPECT_EQ(forward_->totals().audits, 2);
  EXPECT_EQ(forward_->totals().state, "on");
}

TEST_F(FrozenForwardTest, ComputesUpToThreeQuartersOfABatchAlone) {
  Start();
  Confirm();
  for (uint64_t fresh = 100; forward_->totals().passes_skipped == 0; fresh += 6) {
    ASSERT_LT(fresh, 118u);
    Pass({0, fresh, fresh + 1, fresh + 2, 4, fresh + 3, fresh + 4, fresh + 5});
  }
  EXPECT_EQ(forward_->totals().hits, kBatch - 6);
}

TEST_F(FrozenForwardTest, LeavesBatchesOfAnotherSizeAlone) {
  Start();
  Confirm();
  Pass(Ids(0, 5));
  EXPECT_EQ(Misses("unproven"), kBatch + 5);
  Pass(Ids(0));
  EXPECT_EQ(forward_->totals().hits, kBatch);
}

TEST_F(FrozenForwardTest, ForgetsWhatUnfreezesAndNeverUsesItForOtherWeights) {
  Start();
  Confirm();
  const cache::Fingerprint before =
      FrozenPrefix(std::span(model_->modules).first(kFrozen)).FingerprintFor(Images(Ids(0)));
  Freeze(0);
  EXPECT_EQ(forward_->totals().state, "unfrozen");
  cache_->client().Flush(absl::Seconds(10));
  const auto other = daemon_.Connect(JobId(kJob));
  const auto outcomes = other->Lookup(before, Ids(0), size_t{1} << 16, [](size_t, const cache::Entry&) {});
  for (const auto outcome : outcomes) EXPECT_EQ(outcome, cache::CacheClient::Outcome::kAbsent);
}

// With one fingerprint for all weights this finds the old entries.
TEST_F(FrozenForwardTest, EntriesOfOtherWeightsAreNotFound) {
  Start();
  Confirm();
  forward_->Stop(/*finished=*/false);  // keeps the entries
  {
    const at::NoGradGuard no_gradients;
    model_->modules[1].parameters()[0].tensor.mul_(1.0001);
  }
  Start();
  Pass(Ids(8));
  Pass(Ids(0));
  EXPECT_EQ(forward_->totals().audits, 0);
  EXPECT_EQ(forward_->totals().hits, 0);
  EXPECT_EQ(forward_->totals().state, "on");
}

TEST_F(FrozenForwardTest, EntriesOfAnInterruptedTrainingAreFoundByItsResume) {
  Start();
  Confirm();
  forward_->Stop(/*finished=*/false);
  Start();
  Pass(Ids(0));  // the proof
  Pass(Ids(0));  // the audit
  Pass(Ids(0));
  EXPECT_EQ(forward_->totals().hits, kBatch);
  EXPECT_EQ(Misses("absent"), 0);
  forward_->Stop(/*finished=*/true);
  Start();
  Pass(Ids(8));
  Pass(Ids(0));
  EXPECT_EQ(Misses("absent"), kBatch) << "a training that has finished leaves nothing";
}

TEST_F(FrozenForwardTest, FindsOutThatTheCacheHasSomethingElse) {
  Start();
  Pass(Ids(0));
  Freeze(0);  // forgets it
  Freeze(kFrozen);
  const at::Tensor images = Images(Ids(0));
  cache_->Use(FrozenPrefix(std::span(model_->modules).first(kFrozen)).FingerprintFor(images));
  ASSERT_TRUE(cache_->Put(Ids(0), cache::HashRows({images}), {Expected(images) + 1}).ok());
  cache_->client().Flush(absl::Seconds(10));
  Pass(Ids(8));
  Pass(Ids(0));
  EXPECT_EQ(forward_->totals().state, "refused");
  EXPECT_THAT(forward_->totals().reason, HasSubstr("other activations"));
  Pass(Ids(0));
}

TEST_F(FrozenForwardTest, DoesNotUseItOnceAFrozenWeightWasWritten) {
  Start();
  Confirm();
  {
    const at::NoGradGuard no_gradients;
    model_->modules[0].parameters()[0].tensor.add_(1);
  }
  Pass(Ids(0));
  EXPECT_EQ(forward_->totals().state, "refused");
  Freeze(0);
  Freeze(kFrozen);
  Pass(Ids(0));
  EXPECT_EQ(forward_->totals().state, "on") << "with a fingerprint of its own";
}

TEST_F(FrozenForwardTest, GoesOnWhereOtherWeightsWereSwappedInAndOut) {
  Start();
  Confirm();
  const int64_t hits = forward_->totals().hits;
  {
    const at::NoGradGuard no_gradients;
    const at::Tensor weight = model_->modules[0].parameters()[0].tensor, saved = weight.clone();
    weight.zero_();
    weight.copy_(saved);
  }
  Pass(Ids(0));
  EXPECT_EQ(forward_->totals().state, "on");
  EXPECT_EQ(forward_->totals().hits, hits + kBatch);
}

TEST_F(FrozenForwardTest, ADaemonThatIsKilledOrAwayIsAMiss) {
  Start();
  Confirm();
  daemon_.End(SIGKILL);
  for (int i = 0; i < 5; ++i) Pass(Ids(0));
  EXPECT_EQ(Misses("late"), 5 * kBatch);
  daemon_.Start();
  ASSERT_TRUE(WaitUntil([&] { return cache_->client().attached(); }));
  ASSERT_TRUE(WaitUntil([&] {
    Pass(Ids(0));
    return forward_->totals().hits > 0;
  }));
}

TEST_F(FrozenForwardTest, RandomAugmentationSwitchesItOffByItself) {
  Start(/*always=*/false, /*samples_repeat=*/false);
  for (uint64_t epoch = 0; epoch < 3; ++epoch) Pass(Ids(0), Images(Ids(100 * epoch)));
  EXPECT_FALSE(forward_->in_use());
  EXPECT_EQ(forward_->totals().proofs, 0);
  EXPECT_EQ(forward_->totals().state, "off");
  EXPECT_THAT(forward_->totals().reason, HasSubstr("random augmentation"));
}

class Identity : public Block {
 public:
  at::Tensor forward(at::Tensor input) override { return input.clone(); }
};

TEST_F(FrozenForwardTest, WhatDoesNotPayIsSwitchedOffWithItsReason) {
  std::vector<LayerModule> modules;
  modules.emplace_back("same", std::vector<LayerModule::NamedBlock>{{"same", std::make_shared<Identity>()}});
  Start(/*always=*/false);
  forward_->Follow(modules, 1);
  const at::Tensor images = Images(Ids(0));
  // How many passes that takes depends on when the daemon has the entries.
  EXPECT_TRUE(WaitUntil([&] {
    EXPECT_TRUE(SameBits(forward_->Run(images, {Ids(0), images}), images));
    return forward_->totals().state == "off";
  }));
  EXPECT_THAT(forward_->totals().reason, HasSubstr("ms"));
  EXPECT_GT(forward_->totals().forward_seconds, 0);
  forward_->Stop(/*finished=*/true);
}

// Subtracts the mean of the batch.
class BatchMean : public Block {
 public:
  at::Tensor forward(at::Tensor input) override { return input - input.mean(0, /*keepdim=*/true); }
};

TEST_F(FrozenForwardTest, APrefixThatLooksAtTheWholeBatchIsRefused) {
  std::vector<LayerModule> modules;
  modules.emplace_back("mean", std::vector<LayerModule::NamedBlock>{{"mean", std::make_shared<BatchMean>()}});
  Start();
  forward_->Follow(modules, 1);
  const at::Tensor images = Images(Ids(0));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(SameBits(forward_->Run(images, {Ids(0), images}), modules[0].Run(images)));
  }
  EXPECT_EQ(forward_->totals().state, "refused");
  EXPECT_THAT(forward_->totals().reason, HasSubstr("other samples"));
  forward_->Stop(/*finished=*/true);
}

// Convolutions with other settings and the same weights.
class Strided : public Block {
 public:
  explicit Strided(int padding) : conv_(torch::nn::Conv2dOptions(3, 4, 3).padding(padding)) {
    register_module("conv", conv_);
    const at::NoGradGuard no_gradients;
    conv_->weight.fill_(0.5);
    conv_->bias.fill_(0.5);
  }
  at::Tensor forward(at::Tensor input) override { return conv_(input); }

 private:
  torch::nn::Conv2d conv_;
};

TEST(FrozenPrefix, HasAnotherFingerprintWhereAnythingDiffersThatItsOutputDependsOn) {
  const auto fingerprint = [](const std::string& name, int padding, bool training, const at::Tensor& input) {
    const std::vector<LayerModule> modules = {LayerModule(name, {{"block", std::make_shared<Strided>(padding)}})};
    modules[0].SetTraining(training);
    return FrozenPrefix(modules).FingerprintFor(input);
  };
  const at::Tensor input = at::zeros({4, 3, 6, 6});
  const cache::Fingerprint one = fingerprint("m", 1, false, input);
  EXPECT_EQ(fingerprint("m", 1, false, at::ones({4, 3, 6, 6})), one) << "the input itself is the entry's matter";
  EXPECT_NE(fingerprint("n", 1, false, input), one);
  EXPECT_NE(fingerprint("m", 2, false, input), one);
  EXPECT_NE(fingerprint("m", 1, true, input), one);
  EXPECT_NE(fingerprint("m", 1, false, at::zeros({5, 3, 6, 6})), one);
  EXPECT_NE(fingerprint("m", 1, false, input.to(at::kDouble)), one);
}

TEST(FrozenPrefix, HasAnotherFingerprintForEachBitOfItsWeightsAndBuffers) {
  const auto model = ToyModel::Make(3, 3);
  ASSERT_TRUE(model->freezer->Apply(2).ok());
  const FrozenPrefix prefix(std::span(model->modules).first(2));
  const at::Tensor input = Images(Ids(0));
  const cache::Fingerprint before = prefix.FingerprintFor(input);
  const at::NoGradGuard no_gradients;
  for (const at::Tensor& tensor : {model->modules[0].parameters()[0].tensor, model->modules[1].buffers()[0].tensor}) {
    const at::Tensor saved = tensor.clone();
    tensor.view({-1})[0].add_(1e-6);
    EXPECT_NE(prefix.FingerprintFor(input), before);
    tensor.copy_(saved);
    EXPECT_EQ(prefix.FingerprintFor(input), before);
  }
  model->modules[2].parameters()[0].tensor.add_(1);
  EXPECT_EQ(prefix.FingerprintFor(input), before) << "what is not frozen does not count";
}

TEST(ContentWatch, SeesWritesThatTorchDoesNotCount) {
  const at::Tensor large = at::randn({100'000}), small = at::randn({3});
  constexpr size_t kLooks = 256;
  cache::ContentWatch watch({large, small, at::Tensor(), at::randn({4, 6}).slice(1, 0, 6, 2)}, kLooks);
  for (size_t look = 0; look < 2 * kLooks; ++look) ASSERT_TRUE(watch.Unchanged());
  auto* const values = static_cast<float*>(large.mutable_data_ptr());
  const int64_t version = large._version();
  const float saved = std::exchange(values[77'777], 1e3F);
  size_t looks = 1;
  while (watch.Unchanged() && looks <= kLooks) ++looks;
  EXPECT_LE(looks, kLooks) << "a single element, after one round";
  values[77'777] = saved;
  EXPECT_EQ(large._version(), version);
  for (size_t look = 0; look < kLooks; ++look) ASSERT_TRUE(watch.Unchanged()) << "as it was";
  for (int64_t i = 0; i < large.numel(); ++i) values[i] *= 2;
  EXPECT_FALSE(watch.Unchanged()) << "all of a tensor, at once";
  for (int64_t i = 0; i < large.numel(); ++i) values[i] /= 2;
  EXPECT_TRUE(watch.Unchanged());
  static_cast<float*>(small.mutable_data_ptr())[2] = 7;
  EXPECT_FALSE(watch.Unchanged());
  EXPECT_FALSE(watch.Unchanged(/*again=*/true));
}

TEST(ContentWatch, SeesOneElementAtOnceWhereAllIsSmall) {
  const at::Tensor one = at::randn({1'000}), other = at::randn({1'000});
  cache::ContentWatch watch({one, other}, /*looks=*/8, /*whole_bytes=*/8'000);
  static_cast<float*>(other.mutable_data_ptr())[999] = 1e3F;
  EXPECT_FALSE(watch.Unchanged());
}

TEST(ContentWatch, SeesWhereElementsLie) {
  const at::Tensor square = at::zeros({3, 3}), images = at::zeros({2, 3, 4, 4});
  cache::ContentWatch watch({square, at::Tensor(), images});
  square.add_(1);
  EXPECT_TRUE(watch.InPlace());
  square.set_data(square.t());
  EXPECT_FALSE(watch.InPlace()) << "the same memory";
  square.set_data(square.t());
  EXPECT_TRUE(watch.InPlace());
  images.set_data(images.contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_FALSE(watch.InPlace());
}

TEST(ContentWatch, ReturnsWhatTorchHasCountedWritesToAndWhatHasOtherMemory) {
  const at::Tensor one = at::zeros({3}), two = at::zeros({3}), three = at::zeros({3});
  cache::ContentWatch watch({one, two, at::Tensor(), three});
  EXPECT_THAT(watch.Touched(), ::testing::IsEmpty());
  two.add_(0);
  three.set_data(three.clone());
  EXPECT_THAT(watch.Touched(), ::testing::ElementsAre(1, 3));
  EXPECT_THAT(watch.Touched(), ::testing::IsEmpty());
  EXPECT_TRUE(watch.Unchanged()) << "they have the same contents";
}

TEST(RowProof, KnowsFunctionsOfSingleRows) {
  const at::Tensor input = MakeToyBatch(kBatch, 1).images;
  const auto sum = [](const at::Tensor& batch) { return batch.sum({2, 3}); };
  EXPECT_TRUE(RowsAreIndependent(sum, input, sum(input)));
  for (const int64_t size : {1, 2, 4}) EXPECT_TRUE(RowsComputeAlone(sum, input, sum(input), size));
}

TEST(RowProof, FindsWhatDependsOnPlaceCompanyAndNumber) {
  const at::Tensor input = MakeToyBatch(kBatch, 1).images;
  const auto place = [](const at::Tensor& batch) {
    return batch + at::arange(batch.size(0)).view({-1, 1, 1, 1}) * 1e-3;
  };
  EXPECT_FALSE(RowsAreIndependent(place, input, place(input)));
  const auto company = [](const at::Tensor& batch) { return batch - batch.mean(0, true); };
  EXPECT_FALSE(RowsAreIndependent(company, input, company(input)));
  const auto number = [](const at::Tensor& batch) { return batch / static_cast<double>(batch.size(0)); };
  EXPECT_TRUE(RowsAreIndependent(number, input, number(input)));
  EXPECT_FALSE(RowsComputeAlone(number, input, number(input), 4));
  const auto whole_only = [](const at::Tensor& batch) {
    TORCH_CHECK(batch.size(0) == kBatch, "not so");
    return batch * 2;
  };
  EXPECT_FALSE(RowsComputeAlone(whole_only, input, whole_only(input), 4));
}

TEST(RowProof, ComparesBits) {
  const at::Tensor zero = at::zeros({2}), nan = at::full({2}, std::nan(""));
  EXPECT_TRUE(SameBits(nan, nan.clone()));
  EXPECT_FALSE(SameBits(zero, -zero));
  EXPECT_FALSE(SameBits(zero, zero.to(at::kInt)));
  EXPECT_FALSE(SameBits(zero, zero.view({1, 2})));
}

}  // namespace
}  // namespace egeria::worker

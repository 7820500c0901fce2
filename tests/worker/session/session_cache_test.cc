// A session with a cache must be one without, but for time.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/support/cache_daemon.h"
#include "tests/support/fake_agent.h"
#include "tests/support/toy_model.h"
#include "worker/session/session.h"

namespace egeria::worker {
namespace {

using ::egeria::testing::BitEqual;
using ::egeria::testing::CacheDaemon;
using ::egeria::testing::FakeAgent;
using ::egeria::testing::FakeLine;
using ::egeria::testing::MakeToyBatch;
using ::egeria::testing::ToyBatch;
using ::egeria::testing::ToyModel;
using ::egeria::testing::WaitUntil;

constexpr int kCachedModules = 4;
constexpr int64_t kCachedBatch = 8;

struct Outcome {
  std::vector<at::Tensor> state;
  std::vector<Sample> samples;
  CacheTotals cache;
};

void Freeze(int64_t plan, int prefix, FakeLine* line) {
  EXPECT_TRUE(line->Deliver({PlanId(plan), Generation(0), prefix, "test"}).ok());
}

// Trains one rank; the same 4 batches again and again, of which the last is small.
Outcome Train(const CacheDaemon* daemon) {
  FakeLine line(Generation(0), PlanId(0), kCachedModules);
  const auto model = ToyModel::Make(kCachedModules - 1, 3);
  GradientReducer reducer(nullptr);
  SessionParts parts;
  parts.freezer = model->freezer.get();
  parts.reducer = &reducer;
  parts.agent = std::make_unique<FakeAgent>(&line);
  std::shared_ptr<cache::ActivationCache> cache;
  if (daemon != nullptr) {
    cache = *cache::ActivationCache::Start(
        {.address = daemon->address(), .job_id = JobId::Random().text(), .patience = absl::Seconds(20)});
    EXPECT_TRUE(WaitUntil([&] { return cache->client().attached(); }));
    parts.frozen_forward = std::make_unique<FrozenForward>(FrozenForward::Options{.cache = cache, .always = true});
  }
  for (const LayerModule& module : model->modules) parts.snapshot_tensors.push_back(module.parameters());
  auto session = Session::Start(std::move(parts));
  EGERIA_CHECK(session.ok());
  at::manual_seed(17);  // for dropout
  for (int step = 0; step < 60; ++step) {
    if (step == 5) Freeze(1, 2, &line);
    if (step == 15) line.Want(SamplingRequest{ModuleIndex(2), ModuleIndex(2), 1, 4, 1});
    if (step == 20) line.Want(SamplingRequest{ModuleIndex(2), ModuleIndex(1), 1, 4, 2});  // inside the frozen prefix
    if (step == 25) line.Want(SamplingRequest{ModuleIndex(2), ModuleIndex(0), 1, 4, 3});
    if (step == 30) Freeze(2, 0, &line);
    if (step == 33) Freeze(3, 2, &line);
    if (step == 45) Freeze(4, 1, &line);
    const uint64_t number = step % 4;
    const ToyBatch batch = MakeToyBatch(number == 3 ? kCachedBatch / 2 : kCachedBatch, number);
    std::vector<uint64_t> ids;
    for (int64_t i = 0; i < batch.images.size(0); ++i) ids.push_back(number * kCachedBatch + i);
    for (const LayerModule& module : model->modules) module.SetTraining(true);
    model->optimizer->zero_grad();
    (*session)->BeginStep();
    const BatchSamples samples = {ids, batch.images};
    const at::Tensor loss = at::cross_entropy_loss((*session)->Forward(batch.images, &samples), batch.labels);
    (*session)->BeforeBackward(loss);
    loss.backward();
    model->optimizer->step();
    EXPECT_TRUE((*session)->EndStep(loss, {0.05}).ok());
    if (cache != nullptr) cache->client().Flush(absl::Seconds(10));
  }
  const CacheTotals totals = (*session)->totals().cache;
  EXPECT_TRUE((*session)->Stop(/*finished=*/true).ok());
  const ToyBatch batch = MakeToyBatch(1, 9);
  const BatchSamples samples = {{9}, batch.images};
  EXPECT_TRUE((*session)->Forward(batch.images, &samples).defined()) << "a session that has ended still computes";
  return {model->State(0, kCachedModules), line.samples(), totals};
}

TEST(SessionCache, ChangesNeitherWeightsNorWhatIsSampled) {
  const CacheDaemon daemon;
  const Outcome plain = Train(nullptr), cached = Train(&daemon);
  EXPECT_TRUE(BitEqual(plain.state, cached.state));
  ASSERT_EQ(plain.samples.size(), cached.samples.size());
  EXPECT_GE(plain.samples.size(), 15u);
  for (size_t i = 0; i < plain.samples.size(); ++i) {
    ASSERT_EQ(plain.samples[i].tensors.size(), cached.samples[i].tensors.size());
    for (size_t t = 0; t < plain.samples[i].tensors.size(); ++t) {
      const WireTensor& mine = plain.samples[i].tensors[t];
      const WireTensor& theirs = cached.samples[i].tensors[t];
      EXPECT_EQ(mine.spec.shape, theirs.spec.shape);
      EXPECT_TRUE(std::equal(mine.data(), mine.data() + mine.size(), theirs.data())) << "sample " << i;
    }
  }
  EXPECT_EQ(plain.cache.state, "none");
  EXPECT_GT(cached.cache.passes_skipped, 15);
  EXPECT_EQ(cached.cache.state, "on");
}

}  // namespace
}  // namespace egeria::worker

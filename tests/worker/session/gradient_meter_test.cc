#include "worker/session/gradient_meter.h"

#include <memory>
#include <utility>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_agent.h"
#include "tests/support/ranks.h"
#include "tests/support/toy_model.h"
#include "tests/worker/session/toy_rank.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/session/session.h"

namespace egeria::worker {
namespace {

using ::egeria::testing::BitEqual;
using ::egeria::testing::FakeLine;
using ::egeria::testing::GlooGroup;
using ::egeria::testing::RunRanks;
using ::egeria::testing::ToyBatch;
using ::egeria::testing::ToyModel;
using Rank = ::egeria::testing::ToyRank;

constexpr int64_t kMeteredBatch = 8;

// Gradients of the mean loss of some rows, by hand; the first `frozen` modules in evaluation mode.
std::vector<std::vector<at::Tensor>> GradientsOf(ToyModel* model, const ToyBatch& batch, int64_t begin, int64_t end,
                                                 int frozen) {
  at::Tensor output = batch.images.slice(0, begin, end);
  std::vector<at::Tensor> wanted;
  for (int i = 0; i < Rank::kModules; ++i) {
    model->modules[i].SetTraining(i >= frozen);
    output = model->modules[i].Run(output);
    for (const NamedTensor& parameter : model->modules[i].parameters()) wanted.push_back(parameter.tensor);
  }
  const auto flat = torch::autograd::grad({at::cross_entropy_loss(output, batch.labels.slice(0, begin, end))}, wanted);
  std::vector<std::vector<at::Tensor>> gradients;
  size_t next = 0;
  for (const LayerModule& module : model->modules) {
    auto& row = gradients.emplace_back();
    for (size_t j = 0; j < module.parameters().size(); ++j) row.push_back(flat[next++]);
  }
  return gradients;
}

// The same at the weights of the beginning, with nothing frozen.
std::vector<std::vector<at::Tensor>> GradientsOf(const ToyBatch& batch, int64_t begin, int64_t end) {
  const std::unique_ptr<ToyModel> model = ToyModel::Make(Rank::kBlocks, 3, 0);
  return GradientsOf(model.get(), batch, begin, end, 0);
}

// The squares of two parts' gradients, by hand.
GradientReading ByHand(const std::vector<std::vector<at::Tensor>>& one,
                       const std::vector<std::vector<at::Tensor>>& other) {
  GradientReading squares;
  for (size_t i = 0; i < one.size(); ++i) {
    double apart = 0, together = 0;
    for (size_t j = 0; j < one[i].size(); ++j) {
      apart +=
          (one[i][j].to(at::kDouble).square().sum() + other[i][j].to(at::kDouble).square().sum()).item<double>() / 2;
      together += ((one[i][j] + other[i][j]) / 2).to(at::kDouble).square().sum().item<double>();
    }
    squares.mean_of_squares.push_back(apart);
    squares.square_of_mean.push_back(together);
  }
  return squares;
}

void ExpectNear(const std::vector<double>& found, const std::vector<double>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1e-3 * wanted[i]) << "module " << i;
}

TEST(GradientMeter, TellsTwoHalvesOfTheBatchApartOnOneRank) {
  FakeLine line(Generation(0), PlanId(0), Rank::kModules);
  Rank rank({nullptr, 0, 1}, &line, {.dropout = 0, .learning_rate = 0});
  line.Want(GradientRequest{ModuleIndex(0), 1, 7});
  rank.Steps(3);
  const std::vector<GradientReading> readings = line.gradient_readings();
  ASSERT_EQ(readings.size(), 3u);
  for (const GradientReading& reading : readings) {
    const ToyBatch batch = Rank::Batch(reading.step - 1, 0);
    const GradientReading squares = ByHand(GradientsOf(batch, 0, 4), GradientsOf(batch, 4, 8));
    ExpectNear(reading.mean_of_squares, squares.mean_of_squares);
    ExpectNear(reading.square_of_mean, squares.square_of_mean);
    EXPECT_EQ(reading.parts, 2);
    EXPECT_EQ(reading.samples, kMeteredBatch);
  }
}

TEST(GradientMeter, TellsTheRanksApartWithoutAPassOfItsOwn) {
  RunRanks(2, [](const GroupMember& member) {
    FakeLine line(Generation(0), PlanId(0), Rank::kModules);
    Rank rank(member, &line, {.dropout = 0, .learning_rate = 0});
    if (member.rank == 0) line.Want(GradientRequest{ModuleIndex(1), 2, 7});
    rank.Steps(12);
    EXPECT_TRUE(rank.session().Stop(true).ok());
    const std::vector<GradientReading> readings = line.gradient_readings();
    ASSERT_EQ(readings.size(), member.rank == 0 ? 4u : 0u);
    for (const GradientReading& reading : readings) {
      const auto one = GradientsOf(Rank::Batch(reading.step - 1, 0), 0, kMeteredBatch);
      const auto other = GradientsOf(Rank::Batch(reading.step - 1, 1), 0, kMeteredBatch);
      GradientReading squares = ByHand(one, other);
      squares.mean_of_squares.erase(squares.mean_of_squares.begin());
      squares.square_of_mean.erase(squares.square_of_mean.begin());
      ExpectNear(reading.mean_of_squares, squares.mean_of_squares);
      ExpectNear(reading.square_of_mean, squares.square_of_mean);
      EXPECT_EQ(reading.samples, 2 * kMeteredBatch);
    }
  });
}

TEST(GradientMeter, ProbesFrozenModulesOverAllRanks) {
  RunRanks(2, [](const GroupMember& member) {
    FakeLine line(Generation(0), PlanId(0), Rank::kModules);
    Rank rank(member, &line, {.dropout = 0, .learning_rate = 0});
    EXPECT_TRUE(line.Deliver({PlanId(1), Generation(0), 2, ""}).ok());
    rank.Steps(3);
    EXPECT_EQ(rank.model().freezer->frozen_prefix(), 2);
    const std::vector<at::Tensor> frozen = rank.model().State(0, 2);
    if (member.rank == 0) line.Want(GradientRequest{ModuleIndex(0), 1, 7});
    rank.Steps(12);  // heard of after step 9, agreed on after 11
    EXPECT_TRUE(rank.session().Stop(true).ok());
    EXPECT_TRUE(BitEqual(frozen, rank.model().State(0, 2)));
    EXPECT_FALSE(rank.model().modules[0].parameters()[0].tensor.requires_grad());
    const std::vector<GradientReading> readings = line.gradient_readings();
    ASSERT_EQ(readings.size(), member.rank == 0 ? 2u : 0u);
    EXPECT_TRUE(rank.model().freezer->Apply(0).ok());  // the weights are still those of the beginning
    for (const GradientReading& reading : readings) {
      const auto one = GradientsOf(&rank.model(), Rank::Batch(reading.step - 1, 0), 0, kMeteredBatch, 2);
      const auto other = GradientsOf(&rank.model(), Rank::Batch(reading.step - 1, 1), 0, kMeteredBatch, 2);
      const GradientReading squares = ByHand(one, other);
      ExpectNear(reading.mean_of_squares, squares.mean_of_squares);
      ExpectNear(reading.square_of_mean, squares.square_of_mean);
      EXPECT_EQ(reading.samples, 2 * kMeteredBatch);
    }
  });
}

std::vector<at::Tensor> Train(bool measured, int prefix) {
  FakeLine line(Generation(0), PlanId(0), Rank::kModules);
  Rank rank({nullptr, 0, 1}, &line, {.dropout = 0.2});
  at::manual_seed(17);
  if (measured) line.Want(GradientRequest{ModuleIndex(0), 2, 7});
  rank.Steps(4);
  EXPECT_TRUE(line.Deliver({PlanId(1), Generation(0), prefix, ""}).ok());
  rank.Steps(8);
  EXPECT_EQ(line.gradient_readings().size(), measured ? 6u : 0u);
  std::vector<at::Tensor> state = rank.model().State(0, Rank::kModules);
  state.push_back(at::detail::getDefaultCPUGenerator().get_state());
  return state;
}

TEST(GradientMeter, ChangesNothingInTraining) {
  for (const int prefix : {0, 2}) EXPECT_TRUE(BitEqual(Train(true, prefix), Train(false, prefix))) << prefix;
}

TEST(GradientMeter, TellsWhatItTookOfTheBackwardPass) {
  RunRanks(2, [](const GroupMember& member) {
    const std::unique_ptr<ToyModel> model = ToyModel::Make(Rank::kBlocks, 3, 0);
    GradientMeter meter(model->freezer.get(), GlooGroup(member, "commit"), GradientRequest{ModuleIndex(0), 1, 1});
    const ToyBatch batch = Rank::Batch(0, member.rank);
    meter.BeforeForward(batch.images);
    at::Tensor output = batch.images;
    for (const LayerModule& module : model->modules) output = module.Run(output);
    EXPECT_EQ(meter.backward_seconds(), 0);
    const absl::Time start = absl::Now();
    at::cross_entropy_loss(output, batch.labels).backward();
    EXPECT_GT(meter.backward_seconds(), 0);
    EXPECT_LT(meter.backward_seconds(), absl::ToDoubleSeconds(absl::Now() - start));
  });
}

TEST(GradientMeter, SaysNothingOfOneSample) {
  const std::unique_ptr<ToyModel> model = ToyModel::Make(Rank::kBlocks, 3, 0);
  GradientMeter meter(model->freezer.get(), nullptr, GradientRequest{ModuleIndex(0), 1, 1});
  meter.BeforeForward(Rank::Batch(0, 0).images.slice(0, 0, 1));
  EXPECT_EQ(meter.Measure({}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace egeria::worker

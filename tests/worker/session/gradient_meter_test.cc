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

using Gradients = std::vector<std::vector<at::Tensor>>;

// Gradients of a batch's mean loss, by hand, at the weights of the beginning with nothing frozen.
Gradients GradientsOf(const ToyBatch& batch) {
  const std::unique_ptr<ToyModel> model = ToyModel::Make(Rank::kBlocks, 3, 0);
  at::Tensor output = batch.images;
  std::vector<at::Tensor> wanted;
  for (const LayerModule& module : model->modules) {
    output = module.Run(output);
    for (const NamedTensor& parameter : module.parameters()) wanted.push_back(parameter.tensor);
  }
  const auto flat = torch::autograd::grad({at::cross_entropy_loss(output, batch.labels)}, wanted);
  Gradients gradients;
  size_t next = 0;
  for (const LayerModule& module : model->modules) {
    auto& row = gradients.emplace_back();
    for (size_t j = 0; j < module.parameters().size(); ++j) row.push_back(flat[next++]);
  }
  return gradients;
}

double Product(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  double sum = 0;
  for (size_t j = 0; j < one.size(); ++j) sum += (one[j].to(at::kDouble) * other[j]).sum().item<double>();
  return sum;
}

// The squares of two parts' gradients, by hand.
GradientReading ByHand(const Gradients& one, const Gradients& other) {
  GradientReading squares;
  for (size_t i = 0; i < one.size(); ++i) {
    const double apart = (Product(one[i], one[i]) + Product(other[i], other[i])) / 2;
    squares.mean_of_squares.push_back(apart);
    squares.square_of_mean.push_back((apart + Product(one[i], other[i])) / 2);
  }
  return squares;
}

void ExpectNear(const std::vector<double>& found, const std::vector<double>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1e-3 * wanted[i]) << "module " << i;
}

TEST(GradientMeter, TellsThreeStepsApartOnOneRank) {
  FakeLine line(Generation(0), PlanId(0), Rank::kModules);
  Rank rank({nullptr, 0, 1}, &line, {.dropout = 0, .learning_rate = 0});
  line.Want(GradientRequest{ModuleIndex(0), 1, 7});
  rank.Steps(7);
  const std::vector<GradientReading> readings = line.gradient_readings();
  ASSERT_EQ(readings.size(), 2u);
  for (const GradientReading& reading : readings) {
    std::vector<Gradients> steps;
    for (int64_t step = reading.step - 3; step < reading.step; ++step) {
      steps.push_back(GradientsOf(Rank::Batch(step, 0)));
    }
    for (size_t i = 0; i < static_cast<size_t>(Rank::kModules); ++i) {
      double squares = 0;
      for (const Gradients& step : steps) squares += Product(step[i], step[i]) / 3;
      const double signal =
          Product(steps[0][i], steps[1][i]) + Product(steps[1][i], steps[2][i]) - Product(steps[0][i], steps[2][i]);
      EXPECT_NEAR(reading.mean_of_squares[i], squares, 1e-3 * squares) << "module " << i;
      EXPECT_NEAR((3 * reading.square_of_mean[i] - squares) / 2, signal, 1e-3 * squares);
    }
    EXPECT_EQ(reading.parts, 3);
    EXPECT_EQ(reading.samples, 3 * kMeteredBatch);
  }
}

// The second of the products comes from a batch of another size, so that it begins a reading of its own.
TEST(GradientMeter, BeginsAnewAtABatchOfAnotherSize) {
  FakeLine line(Generation(0), PlanId(0), Rank::kModules);
  Rank rank({nullptr, 0, 1}, &line, {.dropout = 0, .learning_rate = 0});
  line.Want(GradientRequest{ModuleIndex(0), 1, 7});
  for (const int64_t samples : {8, 4, 4, 4}) rank.Step(samples);
  const std::vector<GradientReading> readings = line.gradient_readings();
  ASSERT_EQ(readings.size(), 1u);
  EXPECT_EQ(readings[0].step, 4);
  EXPECT_EQ(readings[0].samples, 12);
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
      const auto one = GradientsOf(Rank::Batch(reading.step - 1, 0));
      const auto other = GradientsOf(Rank::Batch(reading.step - 1, 1));
      GradientReading squares = ByHand(one, other);
      squares.mean_of_squares.erase(squares.mean_of_squares.begin());
      squares.square_of_mean.erase(squares.square_of_mean.begin());
      ExpectNear(reading.mean_of_squares, squares.mean_of_squares);
      ExpectNear(reading.square_of_mean, squares.square_of_mean);
      EXPECT_EQ(reading.samples, 2 * kMeteredBatch);
    }
  });
}

TEST(GradientMeter, SaysNothingOfWhatIsFrozen) {
  FakeLine line(Generation(0), PlanId(0), Rank::kModules);
  Rank rank({nullptr, 0, 1}, &line, {.dropout = 0, .learning_rate = 0});
  EXPECT_TRUE(line.Deliver({PlanId(1), Generation(0), 2, ""}).ok());
  rank.Steps(3);
  EXPECT_EQ(rank.model().freezer->frozen_prefix(), 2);
  line.Want(GradientRequest{ModuleIndex(1), 1, 7});
  rank.Steps(4);
  EXPECT_TRUE(line.gradient_readings().empty());
  line.Want(GradientRequest{ModuleIndex(2), 1, 8});
  rank.Steps(4);
  EXPECT_EQ(line.gradient_readings().size(), 1u);
}

std::vector<at::Tensor> Train(bool measured, int prefix) {
  FakeLine line(Generation(0), PlanId(0), Rank::kModules);
  Rank rank({nullptr, 0, 1}, &line, {.dropout = 0.2});
  at::manual_seed(17);
  if (measured) line.Want(GradientRequest{ModuleIndex(prefix), 2, 7});
  rank.Steps(4);
  EXPECT_TRUE(line.Deliver({PlanId(1), Generation(0), prefix, ""}).ok());
  rank.Steps(8);
  EXPECT_EQ(line.gradient_readings().size() >= 2, measured);
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

}  // namespace
}  // namespace egeria::worker

#include "controller/job/policy_inputs.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::controller {
namespace {

using ::testing::ElementsAre;

TEST(PolicyInputs, GivesBackGradientsExactly) {
  policy::Observation observation{.step = 12, .learning_rate = 0.1};
  observation.gradients = {11, 1, 4, {0.1 * 3, 1e-300}, {5e-324, 2}, 96, {-0.5, 1e-300}};
  const policy::Observation back = ObservationFromProto(ObservationToProto(observation));
  ASSERT_TRUE(back.gradients);
  EXPECT_EQ(back.gradients->step, 11);
  EXPECT_EQ(back.gradients->first_module, 1);
  EXPECT_EQ(back.gradients->parts, 4);
  EXPECT_EQ(back.gradients->samples, 96);
  EXPECT_THAT(back.gradients->mean_of_squares, ElementsAre(0.1 * 3, 1e-300));
  EXPECT_THAT(back.gradients->square_of_mean, ElementsAre(5e-324, 2));
  EXPECT_THAT(back.gradients->progress, ElementsAre(-0.5, 1e-300));
  EXPECT_FALSE(ObservationFromProto(ObservationToProto(policy::Observation{.step = 1})).gradients);
}

TEST(PolicyInputs, GivesBackAnAccountExactly) {
  policy::Observation observation{.step = 12};
  observation.account = {-0.1 * 3, 2, 0.3, 0.2, 4, 0.7};
  EXPECT_EQ(ObservationFromProto(ObservationToProto(observation)).account, observation.account);
  EXPECT_FALSE(ObservationFromProto(ObservationToProto(policy::Observation{.step = 1})).account);
}

TEST(PolicyInputs, TellsThePolicyWhatARegistrationSays) {
  v1::RegisterJobRequest request;
  request.set_world_size(4);
  request.set_total_steps(100);
  request.set_step(7);
  request.set_losses_unreported(true);
  request.set_embedding_prefix(1);
  request.add_planned_learning_rates(0.5);
  for (const double share : {0.25, 0.5}) {
    v1::LayerModule* module = request.add_modules();
    module->set_step_share(share);
    module->set_parameter_count(10);
  }
  const policy::JobShape shape = ShapeOf(request);
  EXPECT_EQ(shape.modules, 2);
  EXPECT_EQ(shape.ranks, 4);
  EXPECT_EQ(shape.total_steps, 100);
  EXPECT_EQ(shape.first_step, 7);
  EXPECT_FALSE(shape.losses_reported);
  EXPECT_EQ(shape.embedding_prefix, 1);
  EXPECT_THAT(shape.step_shares, ElementsAre(0.25, 0.5));
  EXPECT_THAT(shape.parameter_counts, ElementsAre(10, 10));
  EXPECT_THAT(shape.planned_learning_rates, ElementsAre(0.5));
}

}  // namespace
}  // namespace egeria::controller

#include "common/policy/policy_proto.h"

#include <string>
#include <variant>

#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using google::protobuf::util::JsonStringToMessage;
using google::protobuf::util::MessageDifferencer;
using ::testing::ElementsAre;

v1::PolicyConfig Parsed(const std::string& json) {
  v1::PolicyConfig proto;
  const auto parsed = JsonStringToMessage(json, &proto);
  EXPECT_TRUE(parsed.ok()) << json;
  return proto;
}

policy::JobShape ShapeOfATraining() {
  policy::JobShape shape{6, 10'000};
  shape.ranks = 2;
  shape.planned_learning_rates = {1, 0.5, 0};
  return shape;
}

// Every constant, none at its default: what JSON gives, the policy gets and the wire gives back.
TEST(PolicyProto, CarriesEveryConstantBothWays) {
  for (const char* json : {
           R"({"auto":{"start":0.5,"every":0.05,"max_modules":3,"threshold":0.1,"late_threshold":0.07,
               "interval_steps":9,"readings":50,"min_readings":12,"reprobe_every":0.2,"unfreeze_rise":1.5,
               "lr_area_left":0.5,"early_share":0.125}})",
           R"({"snr":{"start":0.5,"every":0.05,"max_modules":3,"threshold":0.1,"late_threshold":0.07,
               "interval_steps":9,"readings":50,"min_readings":12,"reprobe_every":0.2,"unfreeze_rise":1.5}})",
           R"({"schedule":{"entries":[{"fraction":0.5,"frozen_prefix":2}]}})",
           R"({"staged":{"begin":0.6,"end":0.8,"stages":2,"deepest_prefix":4,"area":true,"veto":true,"threshold":0.1,
               "every":0.05,"interval_steps":9}})",
           R"({"staged":{"begin":0.6,"end":0.8,"stages":2,"share":0.4,"area":true,"veto":true,"threshold":0.1,
               "every":0.05,"interval_steps":9}})",
           R"({"finetune":{"budget":0.5,"frozen_prefix":2}})",
           R"({"gradnorm":{"percentile":40,"interval_steps":3,"every":0.1,"check_steps":70}})",
           R"({"actnorm":{"interval_steps":7,"window":5,"tolerance":0.3,"batch_size":16,"signed_slope":true,
               "bootstrap":false,"learning_rate_drop":5,"learning_rate_rise":2,"unfreeze_steps":[100]}})",
           R"({"none":{}})",
       }) {
    const v1::PolicyConfig proto = Parsed(json);
    const auto resolved = policy::Resolve(FromProto(proto), ShapeOfATraining());
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*resolved), proto)) << ToProto(*resolved).DebugString();
  }
}

// What the journal keeps is resolved already, and must be read back as what it was.
TEST(PolicyProto, OfAResolvedPolicyIsReadBackAsItIs) {
  for (const char* json : {R"({"auto":{}})", R"({"snr":{}})", R"({"staged":{}})", R"({"finetune":{}})",
                           R"({"gradnorm":{}})", R"({"plasticity":{}})", R"({"actnorm":{}})"}) {
    const auto resolved = policy::Resolve(FromProto(Parsed(json)), ShapeOfATraining());
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    const auto again = policy::Resolve(FromProto(ToProto(*resolved)), ShapeOfATraining());
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*again), ToProto(*resolved))) << json;
    EXPECT_EQ(again->index(), resolved->index()) << json;
  }
}

TEST(PolicyProto, GivesBackGradientsExactly) {
  policy::Observation observation{.step = 12, .learning_rate = 0.1};
  observation.gradients = {11, 1, 4, {0.1 * 3, 1e-300}, {5e-324, 2}, 96, {-0.5, 1e-300}};
  const policy::Observation back = FromProto(ToProto(observation));
  ASSERT_TRUE(back.gradients);
  EXPECT_EQ(back.gradients->step, 11);
  EXPECT_EQ(back.gradients->first_module, 1);
  EXPECT_EQ(back.gradients->parts, 4);
  EXPECT_EQ(back.gradients->samples, 96);
  EXPECT_THAT(back.gradients->mean_of_squares, ElementsAre(0.1 * 3, 1e-300));
  EXPECT_THAT(back.gradients->square_of_mean, ElementsAre(5e-324, 2));
  EXPECT_THAT(back.gradients->progress, ElementsAre(-0.5, 1e-300));
  EXPECT_FALSE(FromProto(ToProto(policy::Observation{.step = 1})).gradients);
}

TEST(PolicyProto, GivesBackAnAccountExactly) {
  policy::Observation observation{.step = 12};
  observation.account = {-0.1 * 3, 2, 0.3, 0.2, 4};
  EXPECT_EQ(FromProto(ToProto(observation)).account, observation.account);
  EXPECT_FALSE(FromProto(ToProto(policy::Observation{.step = 1})).account);
}

TEST(PolicyProto, TellsThePolicyWhatARegistrationSays) {
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
}  // namespace egeria::policy

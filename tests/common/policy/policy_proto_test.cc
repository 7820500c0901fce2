#include "common/policy/policy_proto.h"

#include <string>
#include <variant>

#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace egeria::policy {
namespace {

using google::protobuf::util::JsonStringToMessage;
using google::protobuf::util::MessageDifferencer;

v1::PolicyConfig Parsed(const std::string& json) {
  v1::PolicyConfig proto;
  const auto parsed = JsonStringToMessage(json, &proto);
  EXPECT_TRUE(parsed.ok()) << json;
  return proto;
}

JobShape ShapeOfATraining() {
  JobShape shape{6, 10'000};
  shape.ranks = 2;
  shape.planned_learning_rates = {1, 0.5, 0};
  return shape;
}

// Every constant is given, none at its default: the policy gets what JSON gives, and the wire gives it back.
TEST(PolicyProto, CarriesEveryConstantBothWays) {
  for (const char* json : {
           R"({"auto":{"start":0.5,"every":0.05,"max_modules":3,"threshold":0.1,"late_threshold":0.07,
               "interval_steps":9,"readings":50,"min_readings":12,"unfreeze_rise":1.5,
               "lr_area_left":0.5,"early_share":0.125}})",
           R"({"snr":{"start":0.5,"every":0.05,"max_modules":3,"threshold":0.1,"late_threshold":0.07,
               "interval_steps":9,"readings":50,"min_readings":12,"unfreeze_rise":1.5}})",
           R"({"schedule":{"entries":[{"fraction":0.5,"frozen_prefix":2}]}})",
           R"({"staged":{"begin":0.6,"end":0.8,"stages":2,"deepest_prefix":4,"area":true,"veto":true,"threshold":0.1,
               "every":0.05,"interval_steps":9}})",
           R"({"staged":{"begin":0.6,"end":0.8,"stages":2,"share":0.4,"area":true,"veto":true,"threshold":0.1,
               "every":0.05,"interval_steps":9}})",
           R"({"finetune":{"budget":0.5,"frozen_prefix":2,"stages":4}})",
           R"({"gradnorm":{"percentile":40,"interval_steps":3,"every":0.1,"check_steps":70}})",
           R"({"actnorm":{"interval_steps":7,"window":5,"tolerance":0.3,"batch_size":16,"signed_slope":true,
               "bootstrap":false,"learning_rate_drop":5,"learning_rate_rise":2,"unfreeze_steps":[100]}})",
           R"({"none":{}})",
       }) {
    const v1::PolicyConfig proto = Parsed(json);
    const auto resolved = Resolve(FromProto(proto), ShapeOfATraining());
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*resolved), proto)) << ToProto(*resolved).DebugString();
  }
}

// The journal keeps a policy that is resolved already, which must be read back as it was.
TEST(PolicyProto, OfAResolvedPolicyIsReadBackAsItIs) {
  for (const char* json : {R"({"auto":{}})", R"({"snr":{}})", R"({"staged":{}})", R"({"finetune":{}})",
                           R"({"gradnorm":{}})", R"({"plasticity":{}})", R"({"actnorm":{}})"}) {
    const auto resolved = Resolve(FromProto(Parsed(json)), ShapeOfATraining());
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    const auto again = Resolve(FromProto(ToProto(*resolved)), ShapeOfATraining());
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*again), ToProto(*resolved))) << json;
    EXPECT_EQ(again->index(), resolved->index()) << json;
  }
}

}  // namespace
}  // namespace egeria::policy

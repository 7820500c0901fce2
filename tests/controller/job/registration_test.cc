#include "controller/job/registration.h"

#include <functional>

#include "common/policy/policy_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_fixtures.h"

namespace egeria::controller {
namespace {

using ::egeria::testing::TestRegistration;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Registration, OfAPlainJobIsTaken) { EXPECT_TRUE(ValidateRegistration(TestRegistration(1), {}).ok()); }

TEST(Registration, NamesTheFieldThatIsWrong) {
  using Change = std::function<void(v1::RegisterJobRequest&)>;
  const std::vector<std::pair<Change, std::string>> cases = {
      {[](auto& r) { r.set_job_id("job"); }, "[BAD_JOB_ID]"},
      {[](auto& r) { r.set_job_id("0000000A-0000-4000-8000-000000000000"); }, "[BAD_JOB_ID]"},
      {[](auto& r) { r.set_generation(-1); }, "[BAD_REGISTRATION] generation"},
      {[](auto& r) { r.set_world_size(0); }, "[BAD_REGISTRATION] world size"},
      {[](auto& r) { r.set_world_size(1 << 20); }, "[BAD_REGISTRATION] world size"},
      {[](auto& r) { r.mutable_modules()->DeleteSubrange(1, 2); }, "[BAD_REGISTRATION] 1 modules"},
      {[](auto& r) { r.mutable_modules(1)->set_name("layer0"); }, "[BAD_REGISTRATION] two modules"},
      {[](auto& r) { r.mutable_modules(1)->set_name(""); }, "[BAD_REGISTRATION] a module's name"},
      {[](auto& r) { r.mutable_modules(1)->set_name(std::string(300, 'x')); }, "[BAD_REGISTRATION] a module's name"},
      {[](auto& r) { r.mutable_modules(1)->set_parameter_count(-1); }, "[BAD_REGISTRATION] module 'layer1'"},
      {[](auto& r) { r.mutable_modules(1)->set_local_reference(true); }, "[BAD_REGISTRATION] module 'layer1' has a"},
      {[](auto& r) { r.set_training_job(std::string(300, 'x')); }, "[BAD_REGISTRATION] training_job"},
      {[](auto& r) { r.set_total_steps(-1); }, "[BAD_REGISTRATION] total_steps"},
      {[](auto& r) { r.set_step(-1); }, "[BAD_REGISTRATION] step"},
      {[](auto& r) { r.set_applied_plan(-1); }, "[BAD_REGISTRATION] applied_plan"},
      {[](auto& r) { r.set_received_plan(-1); }, "[BAD_REGISTRATION] received_plan"},
      {[](auto& r) { r.set_frozen_prefix(3); }, "[BAD_REGISTRATION] frozen_prefix"},
      {[](auto& r) { r.set_mode(static_cast<v1::Mode>(9)); }, "[BAD_REGISTRATION] mode"},
      {[](auto& r) { r.mutable_modules(1)->set_step_share(1.5); }, "[BAD_REGISTRATION] module 'layer1' takes 1.5"},
      {[](auto& r) { r.mutable_modules(1)->set_step_share(std::nan("")); }, "[BAD_REGISTRATION] module 'layer1' takes"},
      {[](auto& r) { r.set_mean_rate_before(-1); }, "[BAD_REGISTRATION] mean_rate_before -1"},
      {[](auto& r) { r.set_mean_rate_before(std::nan("")); }, "[BAD_REGISTRATION] mean_rate_before nan"},
      {[](auto& r) { r.set_embedding_prefix(-1); }, "[BAD_REGISTRATION] -1 lookup tables of 3 modules"},
      {[](auto& r) { r.set_embedding_prefix(3); }, "[BAD_REGISTRATION] 3 lookup tables of 3 modules"},
      {[](auto& r) { r.add_planned_learning_rates(-1); }, "[BAD_REGISTRATION] a planned learning rate"},
      {[](auto& r) { r.mutable_planned_learning_rates()->Resize(1'025, 0.1); }, "[BAD_REGISTRATION] 1025 planned"},
  };
  for (const auto& [change, expected] : cases) {
    auto request = TestRegistration(1);
    change(request);
    const absl::Status status = ValidateRegistration(request, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith(expected));
  }
}

TEST(Registration, FingerprintsWhereAReferenceIsEvaluated) {
  auto none = TestRegistration(1);
  none.mutable_modules(1)->clear_graph();
  auto local = none;
  local.mutable_modules(1)->set_local_reference(true);
  EXPECT_TRUE(ValidateRegistration(local, {}).ok());
  EXPECT_TRUE(CompareRegistrations(none, local, false).ok()) << "a restarted worker may do it the other way";
  EXPECT_NE(GraphFingerprint(none), GraphFingerprint(local));
  EXPECT_NE(GraphFingerprint(TestRegistration(1)), GraphFingerprint(local));
}

TEST(Registration, OfAnotherJobUnderTheSameIdConflicts) {
  const auto known = TestRegistration(1);
  auto same = TestRegistration(1);
  same.set_generation(4);
  same.set_training_job("another name");
  EXPECT_TRUE(CompareRegistrations(known, same, false).ok());
  auto other = TestRegistration(1);
  other.mutable_modules(2)->set_parameter_count(5);
  EXPECT_THAT(std::string(CompareRegistrations(known, other, false).message()), HasSubstr("module 2"));
  other = TestRegistration(1);
  other.set_world_size(8);
  EXPECT_EQ(CompareRegistrations(known, other, false).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(CompareRegistrations(known, other, true).ok()) << "an elastic restart may have more ranks";
  EXPECT_EQ(WithSettingsOf(known, other).world_size(), 8);
}

TEST(GraphFingerprint, DiffersWithTheGraphsOnly) {
  const auto known = TestRegistration(1);
  auto other = TestRegistration(1);
  other.set_host("elsewhere");
  EXPECT_EQ(GraphFingerprint(known), GraphFingerprint(other));
  other.mutable_modules(1)->mutable_graph()->mutable_nodes(0)->set_op("aten::gelu");
  EXPECT_NE(GraphFingerprint(known), GraphFingerprint(other));
  other = TestRegistration(1);
  other.mutable_modules(1)->clear_graph();
  EXPECT_NE(GraphFingerprint(known), GraphFingerprint(other));
}

TEST(PolicyProto, KeepsEveryConstant) {
  policy::PlasticityConfig plasticity;
  plasticity.interval_steps = 7;
  plasticity.window = 5;
  plasticity.tolerance = 0.3;
  plasticity.batch_size = 16;
  plasticity.signed_slope = true;
  plasticity.bootstrap = false;
  plasticity.learning_rate_drop = 4;
  plasticity.learning_rate_rise = 2;
  plasticity.unfreeze_steps = {100, 200};
  const v1::PolicyConfig proto = policy::ToProto(policy::PolicyConfig(plasticity));
  EXPECT_EQ(policy::ToProto(policy::FromProto(proto)).SerializeAsString(), proto.SerializeAsString());
  const auto back = std::get<policy::PlasticityConfig>(policy::FromProto(proto));
  EXPECT_EQ(back.window, 5);
  EXPECT_EQ(back.unfreeze_steps, plasticity.unfreeze_steps);
  EXPECT_TRUE(back.signed_slope);
  EXPECT_FALSE(back.bootstrap);
}

TEST(PolicyProto, AbsentConstantsTakeTheirDefaults) {
  const auto config = std::get<policy::PlasticityConfig>(policy::FromProto(v1::PolicyConfig()));
  EXPECT_EQ(config.window, policy::PlasticityConfig().window);
  EXPECT_TRUE(config.bootstrap);
  v1::PolicyConfig none;
  none.mutable_none();
  EXPECT_TRUE(std::holds_alternative<policy::NoneConfig>(policy::FromProto(none)));
  v1::PolicyConfig schedule;
  schedule.mutable_schedule()->add_entries()->set_fraction(0.5);
  EXPECT_EQ(std::get<policy::ScheduleConfig>(policy::FromProto(schedule)).entries.size(), 1u);
}

}  // namespace
}  // namespace egeria::controller

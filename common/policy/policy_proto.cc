#include "common/policy/policy_proto.h"

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "common/policy/constants.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/reflection.h"

namespace egeria::policy {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Reads and writes the field of one constant, whose type in the message is that of the constant's default.
class Field {
 public:
  Field(const Message& message, const Constant& constant)
      : reflection_(*message.GetReflection()), field_(message.GetDescriptor()->FindFieldByName(constant.name)) {
    EGERIA_CHECK(field_ != nullptr);
  }

  bool IsGiven(const Message& message) const {
    return field_->is_repeated() ? reflection_.FieldSize(message, field_) > 0 : reflection_.HasField(message, field_);
  }

  bool Get(const Message& message, bool) const { return reflection_.GetBool(message, field_); }
  int Get(const Message& message, int) const { return reflection_.GetInt32(message, field_); }
  double Get(const Message& message, double) const { return reflection_.GetDouble(message, field_); }
  std::vector<int64_t> Get(const Message& message, const std::vector<int64_t>&) const {
    const auto& values = reflection_.GetRepeatedFieldRef<int64_t>(message, field_);
    return {values.begin(), values.end()};
  }
  std::vector<ScheduleConfig::Entry> Get(const Message& message, const std::vector<ScheduleConfig::Entry>&) const {
    std::vector<ScheduleConfig::Entry> entries;
    for (const auto& entry : static_cast<const v1::SchedulePolicy&>(message).entries()) {
      entries.push_back({entry.fraction(), entry.frozen_prefix()});
    }
    return entries;
  }

  void Set(Message& message, bool value) const { reflection_.SetBool(&message, field_, value); }
  void Set(Message& message, int value) const { reflection_.SetInt32(&message, field_, value); }
  void Set(Message& message, double value) const { reflection_.SetDouble(&message, field_, value); }
  void Set(Message& message, const std::vector<int64_t>& values) const {
    for (const int64_t value : values) reflection_.AddInt64(&message, field_, value);
  }
  void Set(Message& message, const std::vector<ScheduleConfig::Entry>& entries) const {
    for (const ScheduleConfig::Entry& entry : entries) {
      auto* out = static_cast<v1::SchedulePolicy&>(message).add_entries();
      out->set_fraction(entry.fraction);
      out->set_frozen_prefix(entry.frozen_prefix);
    }
  }

 private:
  const Reflection& reflection_;
  const FieldDescriptor* const field_;
};

bool IsZero(const ConstantValue& value) {
  const int* whole = std::get_if<int>(&value);
  const double* number = std::get_if<double>(&value);
  return (whole != nullptr && *whole == 0) || (number != nullptr && *number == 0);
}

}  // namespace

policy::PolicyConfig FromProto(const v1::PolicyConfig& proto) {
  const Reflection& reflection = *proto.GetReflection();
  const FieldDescriptor* which =
      reflection.GetOneofFieldDescriptor(proto, proto.GetDescriptor()->FindOneofByName("policy"));
  if (which == nullptr) return PlasticityConfig();
  const PolicyKind* kind = FindKind(which->name());
  EGERIA_CHECK(kind != nullptr);
  PolicyConfig config = kind->defaults;
  const Message& message = reflection.GetMessage(proto, which);
  for (const Constant& constant : kind->constants) {
    const Field field(message, constant);
    if (!field.IsGiven(message)) continue;
    std::visit([&](const auto& held) { constant.set(config, field.Get(message, held)); }, constant.default_value);
  }
  return config;
}

v1::PolicyConfig ToProto(const policy::PolicyConfig& config) {
  const PolicyKind& kind = KindOf(config);
  v1::PolicyConfig proto;
  Message& message = *proto.GetReflection()->MutableMessage(&proto, proto.GetDescriptor()->FindFieldByName(kind.name));
  for (const Constant& constant : kind.constants) {
    const ConstantValue value = constant.get(config);
    if (constant.is_derived() && IsZero(value)) continue;  // Resolve() has not worked it out
    const Field field(message, constant);
    std::visit([&](const auto& held) { field.Set(message, held); }, value);
  }
  return proto;
}

policy::Observation FromProto(const v1::Observation& proto) {
  policy::Observation observation;
  observation.step = proto.step();
  if (proto.has_module()) observation.module = proto.module();
  if (proto.has_plasticity()) observation.plasticity = proto.plasticity();
  if (proto.has_loss()) observation.loss = proto.loss();
  if (proto.has_learning_rate()) observation.learning_rate = proto.learning_rate();
  if (proto.has_zero_lr_prefix()) observation.zero_lr_prefix = proto.zero_lr_prefix();
  if (proto.has_gradients()) {
    const v1::GradientReading& gradients = proto.gradients();
    observation.gradients = {gradients.step(),
                             gradients.first_module(),
                             gradients.parts(),
                             {gradients.mean_of_squares().begin(), gradients.mean_of_squares().end()},
                             {gradients.square_of_mean().begin(), gradients.square_of_mean().end()},
                             gradients.samples(),
                             {gradients.progress().begin(), gradients.progress().end()}};
  }
  if (proto.has_account()) {
    const v1::Account& account = proto.account();
    observation.account = {account.saved_seconds(), account.measuring_seconds(), account.active_step_seconds(),
                           account.frozen_step_seconds(), account.frozen_prefix()};
  }
  return observation;
}

v1::Observation ToProto(const policy::Observation& observation) {
  v1::Observation proto;
  proto.set_step(observation.step);
  if (observation.module) proto.set_module(*observation.module);
  if (observation.plasticity) proto.set_plasticity(*observation.plasticity);
  if (observation.loss) proto.set_loss(*observation.loss);
  if (observation.learning_rate) proto.set_learning_rate(*observation.learning_rate);
  if (observation.zero_lr_prefix) proto.set_zero_lr_prefix(*observation.zero_lr_prefix);
  if (const std::optional<policy::GradientReading>& gradients = observation.gradients) {
    v1::GradientReading* out = proto.mutable_gradients();
    out->set_step(gradients->step);
    out->set_first_module(gradients->first_module);
    out->set_parts(gradients->parts);
    out->mutable_mean_of_squares()->Add(gradients->mean_of_squares.begin(), gradients->mean_of_squares.end());
    out->mutable_square_of_mean()->Add(gradients->square_of_mean.begin(), gradients->square_of_mean.end());
    out->set_samples(gradients->samples);
    out->mutable_progress()->Add(gradients->progress.begin(), gradients->progress.end());
  }
  if (const std::optional<policy::Account>& account = observation.account) {
    v1::Account* out = proto.mutable_account();
    out->set_saved_seconds(account->saved_seconds);
    out->set_measuring_seconds(account->measuring_seconds);
    out->set_active_step_seconds(account->active_step_seconds);
    out->set_frozen_step_seconds(account->frozen_step_seconds);
    out->set_frozen_prefix(account->frozen_prefix);
  }
  return proto;
}

policy::JobShape ShapeOf(const v1::RegisterJobRequest& registration) {
  policy::JobShape shape;
  shape.modules = registration.modules_size();
  shape.total_steps = registration.total_steps();
  shape.losses_reported = !registration.losses_unreported();
  shape.first_step = registration.step();
  shape.ranks = registration.world_size();
  for (const v1::LayerModule& module : registration.modules()) {
    shape.step_shares.push_back(module.step_share());
    shape.parameter_counts.push_back(module.parameter_count());
  }
  const auto& rates = registration.planned_learning_rates();
  shape.planned_learning_rates.assign(rates.begin(), rates.end());
  shape.budget = registration.budget();
  shape.saved_before = registration.saved_before();
  shape.mean_rate_before = registration.mean_rate_before();
  shape.embedding_prefix = registration.embedding_prefix();
  return shape;
}

policy::JobShape ShapeOf(const v1::JobHeader& header) {
  policy::JobShape shape;
  shape.modules = header.modules_size();
  shape.total_steps = header.summary().total_steps();
  shape.losses_reported = !header.losses_unreported();
  shape.first_step = header.first_step();
  shape.ranks = header.summary().world_size();
  shape.step_shares.assign(header.step_shares().begin(), header.step_shares().end());
  shape.parameter_counts.assign(header.parameter_counts().begin(), header.parameter_counts().end());
  const auto& rates = header.planned_learning_rates();
  shape.planned_learning_rates.assign(rates.begin(), rates.end());
  shape.budget = header.budget();
  shape.saved_before = header.saved_before();
  shape.mean_rate_before = header.mean_rate_before();
  shape.embedding_prefix = header.embedding_prefix();
  return shape;
}

}  // namespace egeria::policy

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

PolicyConfig FromProto(const v1::PolicyConfig& proto) {
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

v1::PolicyConfig ToProto(const PolicyConfig& config) {
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

}  // namespace egeria::policy

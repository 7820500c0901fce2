#include "controller/job/policy_proto.h"

#include <variant>

namespace egeria::controller {
namespace {

policy::PlasticityConfig FromPlasticity(const v1::PlasticityPolicy& proto) {
  policy::PlasticityConfig config;
  if (proto.has_interval_steps()) config.interval_steps = proto.interval_steps();
  if (proto.has_window()) config.window = proto.window();
  if (proto.has_tolerance()) config.tolerance = proto.tolerance();
  if (proto.has_batch_size()) config.batch_size = proto.batch_size();
  if (proto.has_signed_slope()) config.signed_slope = proto.signed_slope();
  if (proto.has_bootstrap()) config.bootstrap = proto.bootstrap();
  if (proto.has_learning_rate_drop()) config.learning_rate_drop = proto.learning_rate_drop();
  if (proto.has_learning_rate_rise()) config.learning_rate_rise = proto.learning_rate_rise();
  config.unfreeze_steps.assign(proto.unfreeze_steps().begin(), proto.unfreeze_steps().end());
  return config;
}

void ToPlasticity(const policy::PlasticityConfig& config, v1::PlasticityPolicy* proto) {
  proto->set_interval_steps(config.interval_steps);
  proto->set_window(config.window);
  proto->set_tolerance(config.tolerance);
  proto->set_batch_size(config.batch_size);
  proto->set_signed_slope(config.signed_slope);
  proto->set_bootstrap(config.bootstrap);
  proto->set_learning_rate_drop(config.learning_rate_drop);
  proto->set_learning_rate_rise(config.learning_rate_rise);
  for (int64_t step : config.unfreeze_steps) proto->add_unfreeze_steps(step);
}

}  // namespace

policy::PolicyConfig FromProto(const v1::PolicyConfig& proto) {
  switch (proto.policy_case()) {
    case v1::PolicyConfig::kSchedule: {
      policy::ScheduleConfig config;
      for (const auto& entry : proto.schedule().entries()) {
        config.entries.push_back({entry.fraction(), entry.frozen_prefix()});
      }
      return config;
    }
    case v1::PolicyConfig::kNone:
      return policy::NoneConfig{};
    case v1::PolicyConfig::kPlasticity:
    case v1::PolicyConfig::POLICY_NOT_SET:
      break;
  }
  return FromPlasticity(proto.plasticity());
}

v1::PolicyConfig ToProto(const policy::PolicyConfig& config) {
  v1::PolicyConfig proto;
  if (const auto* plasticity = std::get_if<policy::PlasticityConfig>(&config)) {
    ToPlasticity(*plasticity, proto.mutable_plasticity());
  } else if (const auto* schedule = std::get_if<policy::ScheduleConfig>(&config)) {
    proto.mutable_schedule();
    for (const auto& entry : schedule->entries) {
      auto* out = proto.mutable_schedule()->add_entries();
      out->set_fraction(entry.fraction);
      out->set_frozen_prefix(entry.frozen_prefix);
    }
  } else {
    proto.mutable_none();
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
  return observation;
}

v1::Observation ToProto(const policy::Observation& observation) {
  v1::Observation proto;
  proto.set_step(observation.step);
  if (observation.module) proto.set_module(*observation.module);
  if (observation.plasticity) proto.set_plasticity(*observation.plasticity);
  if (observation.loss) proto.set_loss(*observation.loss);
  if (observation.learning_rate) proto.set_learning_rate(*observation.learning_rate);
  return proto;
}

}  // namespace egeria::controller

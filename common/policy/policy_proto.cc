#include "common/policy/policy_proto.h"

#include <optional>
#include <variant>

namespace egeria::policy {
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

policy::AutoConfig FromAuto(const v1::AutoPolicy& proto) {
  policy::AutoConfig config;
  if (proto.has_start()) config.start = proto.start();
  if (proto.has_every()) config.every = proto.every();
  if (proto.has_most_modules()) config.most_modules = proto.most_modules();
  if (proto.has_threshold()) config.threshold = proto.threshold();
  if (proto.has_late_threshold()) config.late_threshold = proto.late_threshold();
  if (proto.has_interval_steps()) config.interval_steps = proto.interval_steps();
  if (proto.has_readings()) config.readings = proto.readings();
  if (proto.has_least_readings()) config.least_readings = proto.least_readings();
  if (proto.has_reprobe_every()) config.reprobe_every = proto.reprobe_every();
  if (proto.has_unfreeze_rise()) config.unfreeze_rise = proto.unfreeze_rise();
  if (proto.has_most_backoff()) config.most_backoff = proto.most_backoff();
  if (proto.has_second_opinion()) config.second_opinion = proto.second_opinion();
  if (proto.has_batch_size()) config.batch_size = proto.batch_size();
  if (proto.has_signal_led()) config.signal_led = proto.signal_led();
  if (proto.has_area_left()) config.area_left = proto.area_left();
  if (proto.has_early_share()) config.early_share = proto.early_share();
  return config;
}

void ToAuto(const policy::AutoConfig& config, v1::AutoPolicy* proto) {
  if (config.start) proto->set_start(*config.start);
  proto->set_every(config.every);
  if (config.most_modules != 0) proto->set_most_modules(config.most_modules);
  proto->set_threshold(config.threshold);
  proto->set_late_threshold(config.late_threshold);
  if (config.interval_steps != 0) proto->set_interval_steps(config.interval_steps);
  proto->set_readings(config.readings);
  proto->set_least_readings(config.least_readings);
  proto->set_reprobe_every(config.reprobe_every);
  proto->set_unfreeze_rise(config.unfreeze_rise);
  proto->set_most_backoff(config.most_backoff);
  if (config.second_opinion) proto->set_second_opinion(*config.second_opinion);
  proto->set_batch_size(config.batch_size);
  if (config.signal_led) proto->set_signal_led(*config.signal_led);
  if (config.area_left) proto->set_area_left(*config.area_left);
  if (config.early_share) proto->set_early_share(*config.early_share);
}

policy::StagedConfig FromStaged(const v1::StagedPolicy& proto) {
  policy::StagedConfig config;
  if (proto.has_begin()) config.begin = proto.begin();
  if (proto.has_end()) config.end = proto.end();
  if (proto.has_stages()) config.stages = proto.stages();
  if (proto.has_deepest_prefix()) config.deepest_prefix = proto.deepest_prefix();
  if (proto.has_share()) config.share = proto.share();
  if (proto.has_area()) config.area = proto.area();
  if (proto.has_veto()) config.veto = proto.veto();
  if (proto.has_threshold()) config.threshold = proto.threshold();
  if (proto.has_every()) config.every = proto.every();
  if (proto.has_interval_steps()) config.interval_steps = proto.interval_steps();
  return config;
}

void ToStaged(const policy::StagedConfig& config, v1::StagedPolicy* proto) {
  proto->set_begin(config.begin);
  proto->set_end(config.end);
  proto->set_stages(config.stages);
  if (config.deepest_prefix != 0) proto->set_deepest_prefix(config.deepest_prefix);
  if (config.share != 0) proto->set_share(config.share);
  proto->set_area(config.area);
  proto->set_veto(config.veto);
  proto->set_threshold(config.threshold);
  proto->set_every(config.every);
  if (config.interval_steps != 0) proto->set_interval_steps(config.interval_steps);
}

policy::FinetuneConfig FromFinetune(const v1::FinetunePolicy& proto) {
  policy::FinetuneConfig config;
  if (proto.has_budget()) config.budget = proto.budget();
  if (proto.has_frozen_prefix()) config.frozen_prefix = proto.frozen_prefix();
  return config;
}

void ToFinetune(const policy::FinetuneConfig& config, v1::FinetunePolicy* proto) {
  proto->set_budget(config.budget);
  if (config.frozen_prefix != 0) proto->set_frozen_prefix(config.frozen_prefix);
}

policy::GradnormConfig FromGradnorm(const v1::GradnormPolicy& proto) {
  policy::GradnormConfig config;
  if (proto.has_percentile()) config.percentile = proto.percentile();
  if (proto.has_interval_steps()) config.interval_steps = proto.interval_steps();
  if (proto.has_every()) config.every = proto.every();
  if (proto.has_check_steps()) config.check_steps = proto.check_steps();
  return config;
}

void ToGradnorm(const policy::GradnormConfig& config, v1::GradnormPolicy* proto) {
  proto->set_percentile(config.percentile);
  proto->set_interval_steps(config.interval_steps);
  proto->set_every(config.every);
  proto->set_check_steps(config.check_steps);
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
    case v1::PolicyConfig::kNone: return policy::NoneConfig{};
    case v1::PolicyConfig::kAuto: return FromAuto(proto.auto_());
    case v1::PolicyConfig::kStaged: return FromStaged(proto.staged());
    case v1::PolicyConfig::kFinetune: return FromFinetune(proto.finetune());
    case v1::PolicyConfig::kGradnorm: return FromGradnorm(proto.gradnorm());
    case v1::PolicyConfig::kActnorm: return policy::ActnormConfig{FromPlasticity(proto.actnorm())};
    case v1::PolicyConfig::kPlasticity:
    case v1::PolicyConfig::POLICY_NOT_SET: break;
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
  } else if (const auto* automatic = std::get_if<policy::AutoConfig>(&config)) {
    ToAuto(*automatic, proto.mutable_auto_());
  } else if (const auto* staged = std::get_if<policy::StagedConfig>(&config)) {
    ToStaged(*staged, proto.mutable_staged());
  } else if (const auto* finetune = std::get_if<policy::FinetuneConfig>(&config)) {
    ToFinetune(*finetune, proto.mutable_finetune());
  } else if (const auto* gradnorm = std::get_if<policy::GradnormConfig>(&config)) {
    ToGradnorm(*gradnorm, proto.mutable_gradnorm());
  } else if (const auto* actnorm = std::get_if<policy::ActnormConfig>(&config)) {
    ToPlasticity(*actnorm, proto.mutable_actnorm());
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

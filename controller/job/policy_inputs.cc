#include "controller/job/policy_inputs.h"

#include <optional>

namespace egeria::controller {

policy::Observation ObservationFromProto(const v1::Observation& proto) {
  policy::Observation observation;
  observation.step = proto.step();
  if (proto.has_module()) observation.module = proto.module();
  if (proto.has_plasticity()) observation.plasticity = proto.plasticity();
  if (proto.has_loss()) observation.loss = proto.loss();
  if (proto.has_learning_rate()) observation.learning_rate = proto.learning_rate();
  if (proto.has_zero_lr_prefix()) observation.zero_lr_prefix = proto.zero_lr_prefix();
  if (proto.has_frozen_by_script()) observation.frozen_by_script = proto.frozen_by_script();
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
    observation.account = {account.saved_seconds(),       account.measuring_seconds(), account.active_step_seconds(),
                           account.frozen_step_seconds(), account.frozen_prefix(),     account.switch_seconds()};
  }
  return observation;
}

v1::Observation ObservationToProto(const policy::Observation& observation) {
  v1::Observation proto;
  proto.set_step(observation.step);
  if (observation.module) proto.set_module(*observation.module);
  if (observation.plasticity) proto.set_plasticity(*observation.plasticity);
  if (observation.loss) proto.set_loss(*observation.loss);
  if (observation.learning_rate) proto.set_learning_rate(*observation.learning_rate);
  if (observation.zero_lr_prefix) proto.set_zero_lr_prefix(*observation.zero_lr_prefix);
  if (observation.frozen_by_script) proto.set_frozen_by_script(*observation.frozen_by_script);
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
    out->set_switch_seconds(account->switch_seconds);
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

}  // namespace egeria::controller

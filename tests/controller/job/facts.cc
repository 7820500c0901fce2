#include "tests/controller/job/facts.h"

#include <cmath>

#include "common/policy/policy_proto.h"
#include "controller/job/policy_inputs.h"
#include "tests/support/job_fixtures.h"

namespace egeria::controller {
namespace {

using storage::v1::Fact;

void RandomObservation(const JobState& state, std::mt19937& random, v1::Observation* observation) {
  observation->set_step(state.last_step() + static_cast<int64_t>(random() % 8) - (random() % 16 == 0 ? 20 : 0));
  const unsigned kind = random() % 8;
  if (kind == 0) {
    observation->set_learning_rate(std::pow(10.0, -static_cast<double>(random() % 4)));
  } else if (kind == 1) {
    observation->set_loss(static_cast<double>(random() % 100) / 10);
  } else if (kind == 2 && state.policy().gradient_monitoring()) {
    const int first = state.policy().gradient_monitoring()->first_module;
    v1::GradientReading* gradients = observation->mutable_gradients();
    gradients->set_step(observation->step());
    gradients->set_first_module(first);
    gradients->set_parts(2);
    gradients->set_samples(64);
    const double signal = static_cast<double>(random() % 4) / 8;
    for (int module = first; module < state.module_count(); ++module) {
      gradients->add_mean_of_squares(1);
      gradients->add_square_of_mean(0.5 + signal + 0.01 * static_cast<double>(random() % 3));
    }
  } else {
    const bool frontmost = random() % 8 != 0;
    observation->set_module(frontmost ? state.decided_prefix() : static_cast<int>(random() % 5) - 1);
    // Mostly flat after a steep start, so that modules freeze.
    const double steep = state.observations() % 16 < 5 ? 1.0 / static_cast<double>(1 + state.observations() % 16) : 0;
    observation->set_plasticity(0.01 + steep + 1e-5 * static_cast<double>(random() % 10));
    if (random() % 64 == 0) observation->set_plasticity(std::nan(""));
  }
}

}  // namespace

Fact RegisteredFact(int number) {
  Fact fact;
  v1::RegisterJobRequest* request = fact.mutable_registered()->mutable_request();
  *request = testing::TestRegistration(number);
  for (v1::LayerModule& module : *request->mutable_modules()) module.clear_graph();
  const auto policy =
      policy::Resolve(policy::FromProto(request->policy()), {request->modules_size(), request->total_steps()});
  *request->mutable_policy() = policy::ToProto(*policy);
  return fact;
}

Fact ReadingFact(int64_t step, int module, double plasticity) {
  Fact fact;
  fact.mutable_observed()->set_step(step);
  fact.mutable_observed()->set_module(module);
  fact.mutable_observed()->set_plasticity(plasticity);
  return fact;
}

storage::v1::Fact ModeFact(v1::Mode mode) {
  storage::v1::Fact fact;
  fact.mutable_mode_changed()->set_mode(mode);
  return fact;
}

Fact PauseFact(bool paused) {
  Fact fact;
  fact.mutable_pause_changed()->set_paused(paused);
  return fact;
}

Fact GenerationFact(int64_t generation, int64_t step, int frozen_prefix, int64_t applied_plan) {
  Fact fact;
  fact.mutable_generation_started()->set_generation(generation);
  fact.mutable_generation_started()->set_step(step);
  fact.mutable_generation_started()->set_frozen_prefix(frozen_prefix);
  fact.mutable_generation_started()->set_applied_plan(applied_plan);
  return fact;
}

Fact RandomFact(const JobState& state, std::mt19937& random) {
  if (!state.registered()) {
    if (random() % 4 == 0) return ReadingFact(1, 0, 0.1);
    Fact registered = RegisteredFact(1);
    v1::RegisterJobRequest* request = registered.mutable_registered()->mutable_request();
    request->mutable_policy()->mutable_plasticity()->set_bootstrap(random() % 4 == 0);
    request->set_losses_unreported(random() % 2 == 0);
    if (random() % 2 == 0) {
      v1::AutoPolicy* policy = request->mutable_policy()->mutable_auto_();
      policy->set_start(0.1);
      policy->set_readings(8);
      policy->set_min_readings(4);
      policy->set_threshold(0.3);
      policy->set_max_modules(1);
      request->set_total_steps(1'000);
      *request->mutable_policy() =
          policy::ToProto(*policy::Resolve(policy::FromProto(request->policy()), ShapeOf(*request)));
    }
    return registered;
  }
  Fact fact;
  const unsigned kind = random() % 64;
  if (kind == 0) return RegisteredFact(2);
  if (kind == 1) return fact;
  if (kind == 2) return PauseFact(random() % 2 == 0);
  if (kind == 3) {
    fact.mutable_mode_changed()->set_mode(static_cast<v1::Mode>(random() % 3));
  } else if (kind == 4) {
    fact.mutable_finished()->set_step(state.last_step());
  } else if (kind < 7) {
    const int64_t back = static_cast<int64_t>(random() % 60);
    fact = GenerationFact(state.generation().value() + static_cast<int64_t>(random() % 3) - 1, state.last_step() - back,
                          static_cast<int>(random() % 5) - 1, static_cast<int64_t>(random() % 4));
    fact.mutable_generation_started()->set_losses_unreported(random() % 4 == 0);
    return fact;
  } else if (kind < 10) {
    v1::Decision* decision = fact.mutable_decided();
    decision->set_step(state.last_step());
    decision->set_action("freeze");
    decision->set_frozen_prefix(static_cast<int>(random() % 5) - 1);
    decision->set_origin(static_cast<v1::DecisionOrigin>(random() % 4));
    decision->set_plan_id(random() % 4 == 0 ? 0 : state.newest_plan().value() + 1);
  } else {
    RandomObservation(state, random, fact.mutable_observed());
  }
  return fact;
}

}  // namespace egeria::controller

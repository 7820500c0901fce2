#ifndef EGERIA_TESTS_CLUSTER_LOCAL_TRAINER_H_
#define EGERIA_TESTS_CLUSTER_LOCAL_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/agent/agent.h"

namespace egeria::testing {

// A job of 2 ranks and three modules of which the worker evaluates the reference itself, and a fourth with a
// graph, under the plasticity policy with n = 1, W = 3, b = 2 and no bootstrapping.
worker::JobDescription LocalJob(int number);

// The ranks of one job, with real agents, in a training that takes a millisecond a step: rank 0 takes
// snapshots and makes up readings that fall and then stay, so that modules freeze one after the other; every
// plan is applied on all ranks when all have it. Owned by the test's thread.
class LocalTrainer {
 public:
  // Connects to the controller at `address`.
  LocalTrainer(const std::string& address, worker::JobDescription job);

  // Trains until `done`, half a minute at most; false where that was not enough.
  bool TrainUntil(const std::function<bool()>& done);
  // The same, until all ranks have applied `plan`.
  bool TrainUntilPlan(int64_t plan);

  worker::Agent& agent(int rank) { return *agents_[static_cast<size_t>(rank)]; }
  int64_t step() const { return step_; }
  int frozen_prefix() const { return frozen_prefix_; }
  PlanId applied() const { return applied_; }
  // The readings that were offered, in order, and how many snapshots were taken.
  const std::vector<worker::Reading>& readings() const { return readings_; }
  int snapshots() const { return snapshots_; }

  double learning_rate = 0.1;

 private:
  void Step();
  void Serve(worker::Agent& agent);

  std::vector<std::unique_ptr<worker::Agent>> agents_;
  int64_t step_ = 0;
  int frozen_prefix_ = 0;
  PlanId applied_;
  std::vector<worker::Reading> readings_;
  int readings_of_request_ = 0;
  int64_t request_ = -1;
  int snapshots_ = 0;
};

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_CLUSTER_LOCAL_TRAINER_H_

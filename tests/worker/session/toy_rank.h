#ifndef EGERIA_TESTS_WORKER_SESSION_TOY_RANK_H_
#define EGERIA_TESTS_WORKER_SESSION_TOY_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "tests/support/fake_agent.h"
#include "tests/support/ranks.h"
#include "tests/support/toy_model.h"
#include "worker/session/session.h"

namespace egeria::testing {

// One rank of a job: a toy model of four layer modules, and a session around it. Each rank and step has data of its
// own.
class ToyRank {
 public:
  static constexpr int kBlocks = 3;
  static constexpr int kModules = kBlocks + 1;

  // A rank takes this up where another one of the same number was left.
  struct Saved {
    int64_t step = 0;
    int frozen_prefix = 0;
    PlanId applied_plan;
    std::vector<at::Tensor> tensors;  // parameters and buffers, in order
    std::vector<at::Tensor> momenta;  // the parameters' momenta; undefined where there is none
  };

  struct Options {
    worker::PlanSchedule plans = {};
    double dropout = 0.1;
    double learning_rate = 0.05;
    worker::ModuleFreezer::UnfreezeHook on_unfreeze = {};  // empty: momentum is reset
    const Saved* resume = nullptr;
    std::function<absl::Status()> resync = {};
    int freeze_first = 0;
  };

  // `line`: the controller's end; null: no controller.
  ToyRank(const worker::GroupMember& member, FakeLine* line, Options options);
  ToyRank(const worker::GroupMember& member, FakeLine* line) : ToyRank(member, line, Options()) {}

  static ToyBatch Batch(int64_t step, int rank, int64_t samples = 8);

  void Step(int64_t samples = 8);
  absl::Status TryStep(int64_t samples = 8);
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }

  Saved Save();

  // The loss of the last step.
  float loss() const { return loss_; }
  worker::Session& session() { return *session_; }
  ToyModel& model() { return *model_; }
  std::vector<at::Tensor> State() { return model_->State(0, kModules); }

 private:
  const worker::GroupMember member_;
  const double learning_rate_;
  std::unique_ptr<ToyModel> model_;
  worker::ProcessGroupPtr training_, commit_;
  std::unique_ptr<worker::ModuleFreezer> freezer_;  // null: the model's own
  std::unique_ptr<worker::GradientReducer> reducer_;
  std::unique_ptr<worker::Session> session_;
  float loss_ = 0;
};

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_WORKER_SESSION_TOY_RANK_H_

#ifndef EGERIA_WORKER_SESSION_GRADIENT_EXCHANGE_H_
#define EGERIA_WORKER_SESSION_GRADIENT_EXCHANGE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/agent/agent.h"
#include "worker/commit/async_all_reduce.h"
#include "worker/commit/process_group.h"
#include "worker/commit/wait.h"

namespace egeria::worker {

// What one rank knows of the gradients of a step, by layer module from a first one to the last. It can tell `parts`
// equal parts of its own samples apart; with several ranks mostly one. g_p: gradient of part p's mean loss.
struct GradientSquares {
  std::vector<double> mean_of_squares;  // mean over its own parts of ||g_p||^2
  std::vector<double> square_of_mean;   // ||mean over all parts of all ranks of g_p||^2: the same on every rank
  int parts = 1;
  int64_t samples = 0;  // of this rank; 0: not known
  // This rank's part of an estimate of E g' P E g, P the optimizer's: the mean over the ranks is unbiased. Empty: not
  // known.
  std::vector<double> progress = {};
};

// Makes one reading of the gradients of what the ranks know: a SUM all_reduce of a few doubles per layer module,
// started at one step boundary and taken at the next. Pure where there is no group.
//
// Begin() and Finish() are called by all ranks at the same boundaries; they decide that by numbers that are the same
// everywhere. A rank that has nothing to say of the step takes part all the same, and then there is no reading.
//
// Owned by the training thread.
class GradientExchange {
 public:
  // `group`: gloo; shared with others who use it at the same points. Null for a world of one.
  GradientExchange(ProcessGroupPtr group, int module_count);

  // What this rank knows of `step`.
  void Offer(const GradientRequest& request, int64_t step, GradientSquares own);

  // Starts the exchange of `step`, with what was offered for it. Errors: UNAVAILABLE [RANK_GONE].
  absl::Status Begin(const GradientRequest& request, int64_t step);

  // The reading that was begun before, if there is one: none if a rank offered nothing, if the ranks disagree on
  // the mean gradient (nobody has averaged it: said once), or if it is not finite (the step was skipped).
  // Errors: those of WaitFor(); after CANCELLED and DEADLINE_EXCEEDED the call may be made again.
  absl::StatusOr<std::optional<GradientReading>> Finish(const WaitLimits& limits);

  // The same for a world of one, without an exchange.
  static std::optional<GradientReading> Alone(const GradientRequest& request, int64_t step, GradientSquares own);

  // Waits for what is in flight; see AsyncAllReduce::Stop().
  absl::Status Stop(const WaitLimits& limits) { return reduction_.Stop(limits); }

 private:
  struct Offered {
    GradientRequest request;
    GradientSquares squares;
  };
  size_t SizeOf(const GradientRequest& request) const;

  const int world_size_;
  const int module_count_;
  AsyncAllReduce reduction_;
  std::map<int64_t, Offered> offered_;  // by step; the newest few
  GradientRequest begun_request_;       // of what is in flight
  int64_t begun_step_ = 0;
  std::optional<GradientSquares> begun_own_;
  bool told_ = false;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_GRADIENT_EXCHANGE_H_

#ifndef EGERIA_WORKER_SESSION_FUSED_PREFIX_H_
#define EGERIA_WORKER_SESSION_FUSED_PREFIX_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "worker/cache/client/content_watch.h"
#include "worker/freeze/layer_module.h"
#include "worker/session/frozen_prefix.h"

namespace egeria::worker {

// Runs the frozen front of a model in inference form where that is faster: batch normalisation folded, channels last,
// without autograd. Results differ from the blocks' own in the last bits.
//
// In the first pass of a prefix both ways are measured and compared on the real batch. Forms whose weights are not what
// they were are made anew before they are used. Owned by the training thread.
class FusedPrefix {
 public:
  static constexpr double kWorth = 0.95;

  // `tells`: logs what is decided. Forms are used where they take at most `worth` of the exact pass's time.
  explicit FusedPrefix(bool tells, double worth = kWorth) : tells_(tells), worth_(worth) {}

  // Between steps: these modules are frozen now. They must outlive this object.
  void Follow(std::span<const LayerModule> modules);

  // Returns the frozen modules' output. Only while something is frozen. Exceptions of torch pass through.
  at::Tensor Run(const at::Tensor& input);

  // Whether the first pass has shown which way is used.
  bool is_decided() const { return state_ != State::kUnknown; }
  // Whether Run() uses forms.
  bool is_fused() const { return state_ == State::kFused; }

 private:
  enum class State { kUnknown, kFused, kExact };

  // Returns false where a block has no form.
  bool MakeForms();
  at::Tensor RunForms(const at::Tensor& input) const;
  // Measures both ways, and says which one is used from here on.
  void Choose(const at::Tensor& input, const at::Tensor& exact);
  void Decide(State state, const std::string& why);

  const bool tells_;
  const double worth_;
  std::span<const LayerModule> modules_;
  std::optional<FrozenPrefix> exact_;
  State state_ = State::kUnknown;
  std::vector<Block::InferenceForm> forms_;      // one for each block
  std::optional<cache::ContentWatch> contents_;  // the weights of which the forms were made
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_FUSED_PREFIX_H_

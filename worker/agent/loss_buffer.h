#ifndef EGERIA_WORKER_AGENT_LOSS_BUFFER_H_
#define EGERIA_WORKER_AGENT_LOSS_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace egeria::worker {

// Losses of consecutive steps.
struct LossRun {
  int64_t first_step = 0;
  std::vector<float> values;
};

// The losses that the controller may still need: each is handed out once a stream, and again on the next
// stream unless the controller has said that it can be forgotten. Bounded; the oldest make room.
// Pure; thread-compatible.
class LossBuffer {
 public:
  static constexpr size_t kCapacity = 65'536;

  // Steps rise; a step at or under the newest is passed over.
  void Add(int64_t step, float loss);

  // Hands out the next run of consecutive steps that was not handed out since the last Rewind(); empty when there is
  // none.
  LossRun Next();
  bool HasNext() const { return handed_out_ < losses_.size(); }

  // Hands out from the oldest again.
  void Rewind() { handed_out_ = 0; }

  // Forgets the losses up to `step`.
  void Forget(int64_t step);

  // The number of losses that newer ones have pushed out.
  int64_t dropped() const { return dropped_; }

 private:
  struct Loss {
    int64_t step;
    float value;
  };
  void DropOldest();

  std::deque<Loss> losses_;
  size_t handed_out_ = 0;  // so many of losses_, from the front
  int64_t dropped_ = 0;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_LOSS_BUFFER_H_

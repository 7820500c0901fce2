#ifndef EGERIA_CONTROLLER_JOB_EFFECTS_H_
#define EGERIA_CONTROLLER_JOB_EFFECTS_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "controller/job/session_listener.h"
#include "controller/reference/evaluator.h"

namespace egeria::controller {

// The calls that a change of jobs leads to. The destructor makes them, in order. Declare it before the lock, so
// that they are made once the lock is released:
//   Effects effects(evaluator);
//   const MutexLock lock(&mutex_);
//
// Thread-compatible.
class Effects {
 public:
  // `evaluator` may be null, and is told nothing then.
  explicit Effects(reference::Evaluator* evaluator) : evaluator_(evaluator) {}
  Effects(const Effects&) = delete;
  Effects& operator=(const Effects&) = delete;
  ~Effects() {
    for (const auto& action : actions_) action();
  }

  // Calls `call` on the listener if the stream still exists.
  void Tell(std::weak_ptr<SessionListener> listener, std::function<void(SessionListener&)> call) {
    actions_.push_back([listener = std::move(listener), call = std::move(call)] {
      if (auto alive = listener.lock()) call(*alive);
    });
  }

  void TellEvaluator(std::function<void(reference::Evaluator&)> call) {
    if (evaluator_ == nullptr) return;
    actions_.push_back([evaluator = evaluator_, call = std::move(call)] { call(*evaluator); });
  }

 private:
  reference::Evaluator* const evaluator_;
  std::vector<std::function<void()>> actions_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_EFFECTS_H_

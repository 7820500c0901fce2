#ifndef EGERIA_CONTROLLER_JOB_EFFECTS_H_
#define EGERIA_CONTROLLER_JOB_EFFECTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "controller/reference/evaluator.h"

namespace egeria::controller {

// Names one stream of one rank; 0 is none.
using SessionId = Id<struct SessionIdTag>;

// A rank's stream as the job manager sees it. The manager calls the methods from any thread, without a lock of its own
// held. They must not block.
class SessionListener {
 public:
  virtual ~SessionListener() = default;
  // SessionDesk::DirectiveFor() may return something else now.
  virtual void OnDirectiveChanged() = 0;
  virtual void OnUploadRefused(int64_t upload_id, const absl::Status& reason) = 0;
  // The session is over; end the stream with this status.
  virtual void OnClose(const absl::Status& status) = 0;
};

// The calls that a change of jobs leads to. The destructor makes them, in order. Declare the effects before the lock,
// so that the calls are made once the lock is released:
//   Effects effects(evaluator);
//   const MutexLock lock(&mutex_);
//
// Thread-compatible.
class Effects {
 public:
  // `evaluator` may be null, and nothing is told to it then.
  explicit Effects(reference::Evaluator* evaluator) : evaluator_(evaluator) {}
  Effects(const Effects&) = delete;
  Effects& operator=(const Effects&) = delete;
  ~Effects() {
    for (const auto& action : actions_) action();
  }

  // Calls `call` on the listener if the stream still exists then.
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

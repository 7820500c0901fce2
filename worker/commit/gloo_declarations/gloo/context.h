#ifndef EGERIA_GLOO_DECLARATIONS_CONTEXT_H_
#define EGERIA_GLOO_DECLARATIONS_CONTEXT_H_

#include <chrono>

namespace gloo {

// Only ever held by pointer here; torch's header calls this one method inline.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo

#endif  // EGERIA_GLOO_DECLARATIONS_CONTEXT_H_

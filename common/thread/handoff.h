#ifndef EGERIA_COMMON_THREAD_HANDOFF_H_
#define EGERIA_COMMON_THREAD_HANDOFF_H_

// Tells the thread sanitizer what a library that it does not see into (gRPC) promises: what happened before
// HandOver(object) on one thread happens before what follows TakeOver(object) on another. It does
// nothing in other builds.
#ifdef EGERIA_THREAD_SANITIZER
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace egeria {

inline void HandOver(const void* object) {
#ifdef EGERIA_THREAD_SANITIZER
  __tsan_release(const_cast<void*>(object));
#endif
}

inline void TakeOver(const void* object) {
#ifdef EGERIA_THREAD_SANITIZER
  __tsan_acquire(const_cast<void*>(object));
#endif
}

// Lives as long as a library's callback to an object. It takes over what was handed over, and hands over what the
// callback has done to those that the library lets follow.
class Reaction {
 public:
  explicit Reaction(const void* object) : object_(object) { TakeOver(object_); }
  ~Reaction() { HandOver(object_); }
  Reaction(const Reaction&) = delete;
  Reaction& operator=(const Reaction&) = delete;

 private:
  [[maybe_unused]] const void* const object_;
};

}  // namespace egeria

#endif  // EGERIA_COMMON_THREAD_HANDOFF_H_

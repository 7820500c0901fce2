#ifndef EGERIA_COMMON_THREAD_FORK_GUARD_H_
#define EGERIA_COMMON_THREAD_FORK_GUARD_H_

#include <sys/types.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace egeria {

// Holds an object whose threads and locks belong to the process that made it. A forked child, such as a data loader's
// worker, has a copy without these threads, and some thread of the parent may have held its locks. The child must not
// touch the copy, not even to destroy it. So in a forked child the guard gives no object, and leaks the copy.
//
// Thread-safe, as it is constant once it is made.
template <typename T>
class ForkGuard {
 public:
  ForkGuard() = default;
  explicit ForkGuard(std::shared_ptr<T> object) : object_(std::move(object)) {}
  ~ForkGuard() {
    if (getpid() != pid_) new std::shared_ptr<T>(std::move(object_));
  }
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // The object; null in a forked child.
  T* get() const { return getpid() == pid_ ? object_.get() : nullptr; }

  // The same as a shared pointer, for those who may outlive this guard.
  std::shared_ptr<T> shared() const { return getpid() == pid_ ? object_ : nullptr; }

  // Calls `method`, a method or a function of the object. In a forked child, and where there is no object, it is not
  // called, and the result is what its type has by default.
  template <typename Method, typename... Args>
  std::invoke_result_t<Method, T&, Args...> Call(const Method& method, Args&&... args) const {
    if (T* const object = get(); object != nullptr) return std::invoke(method, *object, std::forward<Args>(args)...);
    if constexpr (!std::is_void_v<std::invoke_result_t<Method, T&, Args...>>) return {};
  }

 private:
  const pid_t pid_ = getpid();
  std::shared_ptr<T> object_;
};

}  // namespace egeria

#endif  // EGERIA_COMMON_THREAD_FORK_GUARD_H_

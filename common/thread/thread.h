#ifndef EGERIA_COMMON_THREAD_THREAD_H_
#define EGERIA_COMMON_THREAD_THREAD_H_

#include <functional>
#include <string>
#include <thread>

namespace egeria {

// Starts a thread that carries `name` (the first 15 characters) in debuggers and /proc, with every signal
// blocked, so that signals reach the main thread.
std::thread StartThread(const std::string& name, std::function<void()> body);

}  // namespace egeria

#endif  // EGERIA_COMMON_THREAD_THREAD_H_

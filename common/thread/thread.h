#ifndef EGERIA_COMMON_THREAD_THREAD_H_
#define EGERIA_COMMON_THREAD_THREAD_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <thread>

#include "absl/time/time.h"

namespace egeria {

// Starts a thread that carries `name` (the first 15 characters) in debuggers and /proc, with every signal
// blocked, so that signals reach the main thread.
std::thread StartThread(const std::string& name, std::function<void()> body);

// A thread in the background never takes a processor from a thread at work when it wakes up: it waits for one to be
// free, or for its turn. Without that, whoever asks for something to be done in the background is itself interrupted.
// `thread` is one of this process, as gettid() gives it.
void SetBackground(pid_t thread, bool background);

// Processor time that the calling thread has taken so far; it stands still while others have the CPU.
absl::Duration ThreadCpuTime();

}  // namespace egeria

#endif  // EGERIA_COMMON_THREAD_THREAD_H_

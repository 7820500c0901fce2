#ifndef EGERIA_CONTROLLER_REFERENCE_THREAD_PRIORITY_H_
#define EGERIA_CONTROLLER_REFERENCE_THREAD_PRIORITY_H_

#include <sys/types.h>

#include <vector>

namespace egeria::reference {

// The kernel's id of the calling thread.
pid_t CurrentThreadId();

// Runs the thread only where a CPU is otherwise idle (SCHED_IDLE), or as others do (SCHED_OTHER). Any thread
// of the process may be named. False where the kernel refuses.
bool SetIdlePriority(pid_t thread, bool idle);

// True if a thread of this process may leave idle priority again: that takes CAP_SYS_NICE, or
// RLIMIT_NICE of 20 or more (systemd: LimitNICE=+0). Tries it on a thread of its own.
bool CanLeaveIdlePriority();

// Binds the calling thread, and those that it starts, to these CPUs. Empty: no change. False where the kernel
// refuses (a CPU that does not exist, or is not in the process's set).
bool PinToCpus(const std::vector<int>& cpus);

}  // namespace egeria::reference

#endif  // EGERIA_CONTROLLER_REFERENCE_THREAD_PRIORITY_H_

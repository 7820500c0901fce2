#include "controller/reference/thread_priority.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/thread/thread.h"

namespace egeria::reference {

pid_t CurrentThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

bool SetIdlePriority(pid_t thread, bool idle) {
  sched_param parameter{};  // both classes take priority 0 only
  return sched_setscheduler(thread, idle ? SCHED_IDLE : SCHED_OTHER, &parameter) == 0;
}

bool CanLeaveIdlePriority() {
  bool can = false;
  StartThread("idle-probe", [&can] {
    const pid_t self = CurrentThreadId();
    can = SetIdlePriority(self, true) && SetIdlePriority(self, false);
  }).join();
  return can;
}

bool PinToCpus(const std::vector<int>& cpus) {
  if (cpus.empty()) return true;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
    CPU_SET(cpu, &set);
  }
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

}  // namespace egeria::reference

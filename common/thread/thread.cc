#include "common/thread/thread.h"

#include <pthread.h>
#include <sched.h>

#include <csignal>
#include <ctime>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace egeria {

std::thread StartThread(const std::string& name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const absl::Cleanup restore = [&before] { pthread_sigmask(SIG_SETMASK, &before, nullptr); };
  return std::thread([name = name.substr(0, 15), body = std::move(body)] {
    pthread_setname_np(pthread_self(), name.c_str());
    body();
  });
}

void SetBackground(pid_t thread, bool background) {
  const sched_param none{};
  sched_setscheduler(thread, background ? SCHED_BATCH : SCHED_OTHER, &none);  // where it is forbidden all works as well
}

absl::Duration ThreadCpuTime() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return absl::DurationFromTimespec(now);
}

}  // namespace egeria

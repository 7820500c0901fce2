#include "controller/engine/sandbox.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <vector>

namespace egeria::reference {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

#if defined(__x86_64__)
constexpr unsigned kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr unsigned kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr unsigned kArchitecture = 0;
#endif

constexpr unsigned kAllowed[] = {
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_close,
    SYS_lseek,  // open descriptors
    SYS_mmap,
    SYS_munmap,
    SYS_mremap,
    SYS_mprotect,
    SYS_madvise,
    SYS_brk,
    SYS_membarrier,  // memory
    SYS_futex,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_gettid,
    SYS_getpid,
    SYS_exit,
    SYS_exit_group,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_restart_syscall,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_gettimeofday,
    SYS_getrusage,
    SYS_sysinfo,
    SYS_uname,
    SYS_getrandom,
    SYS_getcpu,
    SYS_get_mempolicy,
};

void Limit(__rlimit_resource resource, rlim_t value) {
  const rlimit limit = {value, value};
  setrlimit(resource, &limit);
}

// Bytes of private memory that can be written, which is what RLIMIT_DATA counts.
size_t DataBytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    size_t kib = 0;
    if (word == "VmData:" && file >> kib) return kib << 10;
  }
  return 0;
}

std::vector<sock_filter> Filter() {
  const auto field = [](size_t offset) { return static_cast<unsigned>(offset); };
  const auto argument = [&](int i) {
    return field(offsetof(seccomp_data, args) + sizeof(__u64) * static_cast<size_t>(i));
  };
  const sock_filter deny = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  const sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  std::vector<sock_filter> filter = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, field(offsetof(seccomp_data, arch))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, field(offsetof(seccomp_data, nr))),
  };
  for (unsigned number : kAllowed) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    filter.push_back(allow);
  }
  // Threads, but no processes. The newer call has its flags in memory, where a filter cannot look; glibc then takes the
  // older one.
  const sock_filter threads[] = {
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument(0)),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1),
      allow,
      deny,
      // A signal to itself, which is how abort() ends it.
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument(0)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(getpid()), 0, 1),
      allow,
      deny,
  };
  filter.insert(filter.end(), std::begin(threads), std::end(threads));
  return filter;
}

}  // namespace

void BindToParent(pid_t parent, int first_closed) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it has ended before
  signal(SIGINT, SIG_IGN);            // from a terminal, where it is meant for the parent
  signal(SIGPIPE, SIG_IGN);
  std::ofstream("/proc/self/oom_score_adj") << "1000";  // where memory runs out, this process goes
#ifdef SYS_close_range
  syscall(SYS_close_range, first_closed, ~0u, 0);
#endif
}

std::string EnterSandbox(size_t memory_bytes) {
  const size_t now = DataBytes();  // while files can still be read
  Limit(RLIMIT_CORE, 0);
  Limit(RLIMIT_NOFILE, 0);
  if (kSanitized) return "";
  Limit(RLIMIT_DATA, now + memory_bytes);
  if (kArchitecture == 0) return "no filter has been written for this processor";
  std::vector<sock_filter> filter = Filter();
  const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    return std::strerror(errno);
  }
  return "";
}

}  // namespace egeria::reference

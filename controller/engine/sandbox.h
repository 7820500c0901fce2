#ifndef EGERIA_CONTROLLER_ENGINE_SANDBOX_H_
#define EGERIA_CONTROLLER_ENGINE_SANDBOX_H_

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace egeria::reference {

// Ends this process as soon as its parent ends, which must be `parent`, and first of all where memory runs out. Closes
// all descriptors from `first_closed` on.
void BindToParent(pid_t parent, int first_closed);

// Takes from this process, for ever, what computing with tensors does not need:
// - Limits of the kernel: no new descriptors, no core, and `memory_bytes` of memory more than it has now.
// - A filter of system calls: it may use memory, threads, clocks and the descriptors that it has. Every other call, for
//   files, sockets, other processes or programs, gives EPERM.
// Returns why the filter is not in force, or nothing. Programs with a sanitizer get no limit of memory and no filter.
std::string EnterSandbox(size_t memory_bytes);

}  // namespace egeria::reference

#endif  // EGERIA_CONTROLLER_ENGINE_SANDBOX_H_

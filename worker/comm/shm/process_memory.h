// Reading the private memory of another process of this host, in one copy (process_vm_readv).
//
// The kernel permits it between processes of one user, unless it was told not to (ptrace_scope, a
// seccomp filter, another pid namespace): callers try it first. Thread-safe.
#ifndef TESSERA_WORKER_COMM_SHM_PROCESS_MEMORY_H_
#define TESSERA_WORKER_COMM_SHM_PROCESS_MEMORY_H_

#include <sys/types.h>

#include <cstdint>

#include "absl/status/status.h"

namespace tessera {

// `address` is the other process's; whatever it is, nothing but `to` is written.
// Errors: NotFound     the process is gone
//         Unavailable  it forbids this, or has no such memory
// Both name the process. Some of `to` may be written.
absl::Status ReadProcessMemory(pid_t process, uint64_t address, void* to, int64_t bytes);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_SHM_PROCESS_MEMORY_H_

// What the kernel says of a process, for a person who asks why it does not end.
//
//   process 12, state D (disk sleep); thread 12 'tessera-executo', D (disk sleep) in rpc_wait_bit,
//   system call 262; kernel stack: rpc_wait_bit < nfs4_do_call < ...; thread 14 ...
//
// Read from /proc, where names of threads are what the process chose: whatever is not printable
// text is escaped, and all of it has a bound. Nothing that is read waits for the process.
// Stateless; thread-safe.
#ifndef TESSERA_WORKER_KEEPER_PROCESS_STATE_H_
#define TESSERA_WORKER_KEEPER_PROCESS_STATE_H_

#include <string>

namespace tessera {

// By a signal, as SIGSTOP. False of a process that is gone, and of one that a debugger holds.
// `proc`: where its file system is mounted.
bool IsStopped(int pid, const std::string& proc = "/proc");

// Of each of its threads, up to a number, the state, where it waits in the kernel, the system call
// and the kernel's stack. Stacks are read with CAP_SYS_ADMIN alone, which root has and the worker's
// unit takes away; without it the text says so. Of a process that is gone the number alone. At most
// kMaxProcessTextBytes.
std::string DescribeProcess(int pid, const std::string& proc = "/proc");
inline constexpr size_t kMaxProcessTextBytes = 3000;

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_PROCESS_STATE_H_

// Keeps other processes of the same user out of this one.
#ifndef TESSERA_BASE_CLOSED_PROCESS_H_
#define TESSERA_BASE_CLOSED_PROCESS_H_

#include <sys/prctl.h>

namespace tessera {

// What the processes of a worker say of their flag --debuggable.
inline constexpr char kDebuggableHelp[] =
    "let debuggers of the same user look into this process, and leave a core file of a crash";

// From now on no process of the same user but root's can open this one's descriptors through /proc,
// read its memory or attach a debugger to it, and a crash leaves no core file. Ends with an exec.
inline void CloseProcess() { prctl(PR_SET_DUMPABLE, 0); }

}  // namespace tessera

#endif  // TESSERA_BASE_CLOSED_PROCESS_H_

// For threads whose work can wait.
#ifndef TESSERA_BASE_YIELD_TO_OTHERS_H_
#define TESSERA_BASE_YIELD_TO_OTHERS_H_

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tessera {

// From here on the calling thread is scheduled after those of ordinary priority, to its end. Where
// that is forbidden it stays as it is.
inline void YieldToOthers() {
  constexpr int kNiceness = 10;  // 19 is the lowest priority. On Linux it is the thread's own.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNiceness);
}

}  // namespace tessera

#endif  // TESSERA_BASE_YIELD_TO_OTHERS_H_

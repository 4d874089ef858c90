// For tests: while it lives, this process cannot make threads, as at a limit of the machine. Real
// refusals of the system: the stack that a thread would get does not fit into any address space.
// One at a time; no other thread may want to make threads meanwhile.
#ifndef TESSERA_BASE_NO_MORE_THREADS_H_
#define TESSERA_BASE_NO_MORE_THREADS_H_

#include <pthread.h>

#include "base/check.h"

namespace tessera {

class NoMoreThreads {
 public:
  NoMoreThreads() {
    TESSERA_CHECK(pthread_getattr_default_np(&before_) == 0);
    pthread_attr_t huge;
    TESSERA_CHECK(pthread_getattr_default_np(&huge) == 0);
    TESSERA_CHECK(pthread_attr_setstacksize(&huge, size_t{1} << 50) == 0);
    TESSERA_CHECK(pthread_setattr_default_np(&huge) == 0);
    pthread_attr_destroy(&huge);
  }
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_NO_MORE_THREADS_H_

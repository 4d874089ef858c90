// How long the calling thread waits for a storage that does not answer, where that is less than the
// storage's own deadline: a supervisor that tidies up must not wait for minutes.
//
// While one is in scope, all that this thread asks of a storage, and what threads do for that,
// together takes no longer. A file system ignores it. Confined to the thread that made it.
#ifndef TESSERA_CHECKPOINT_STORAGE_STORAGE_PATIENCE_H_
#define TESSERA_CHECKPOINT_STORAGE_STORAGE_PATIENCE_H_

#include <algorithm>

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tessera {

class StoragePatience {
 public:
  explicit StoragePatience(absl::Duration most) : StoragePatience(SteadyNow() + most) {}
  explicit StoragePatience(absl::Time deadline) : before_(deadline_) {
    deadline_ = std::min(deadline_, deadline);
  }
  ~StoragePatience() { deadline_ = before_; }
  StoragePatience(const StoragePatience&) = delete;
  StoragePatience& operator=(const StoragePatience&) = delete;

  // InfiniteFuture without one in scope.
  static absl::Time Deadline() { return deadline_; }

 private:
  inline static thread_local absl::Time deadline_ = absl::InfiniteFuture();
  const absl::Time before_;
};

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_STORAGE_STORAGE_PATIENCE_H_

// Why a rank's engine must stop, and what wakes it so that it looks.
//
//   Stop(reason)   any thread: the worker ends the epoch
//   StreamFailed   the post-backward stream: a reduction failed
//        └──► Raise: every wait of the engine that has flag() ends, and the engine asks Check()
//
// Thread-safe.
#ifndef TESSERA_WORKER_ENGINE_EPOCH_INTERRUPT_H_
#define TESSERA_WORKER_ENGINE_EPOCH_INTERRUPT_H_

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "shm/wait_word.h"

namespace tessera {

class EpochInterrupt {
 public:
  // `submitted`: the word at which the engine waits for operations. Outlives this.
  explicit EpochInterrupt(WaitWord* submitted) : submitted_(submitted) {}

  // `reason` is not OK; the first one counts.
  void Stop(const absl::Status& reason);
  // Ends the engine without ending the epoch, unless there is a reason to stop already. Whether it
  // did.
  bool Leave();
  bool has_left() const { return left_.load(); }
  // The first error of the stream's work.
  void StreamFailed(const absl::Status& error);
  // Ends the engine's waits: at once where it waits for operations, within a slice of WaitUntil
  // elsewhere.
  void Raise();

  // Stop()'s reason, else the stream's error; OK: go on.
  absl::Status Check() const;
  absl::Status stream_status() const;
  // Where a peer's failure ended the engine: the worker's reason for ending the epoch, which is the
  // same on every rank. `status` where it does not come.
  absl::Status AwaitReason(const absl::Status& status) const;
  bool is_raised() const { return raised_.load(std::memory_order_acquire) != 0; }
  // For waits: not 0 once raised.
  const std::atomic<uint32_t>* flag() const { return &raised_; }

 private:
  WaitWord* const submitted_;
  std::atomic<uint32_t> raised_{0};
  std::atomic<bool> left_{false};
  mutable absl::Mutex mu_;
  absl::Status stop_reason_ ABSL_GUARDED_BY(mu_);
  absl::Status stream_status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_EPOCH_INTERRUPT_H_

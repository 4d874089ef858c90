// A copy of one version of a rank's state, made while training goes on.
//
//   Begin: reserves memory ──► CopyAll on a thread of low priority ──► slice()
//                              AwaitCopied: before training overwrites the version, it copies too
//
// A version stands until the step after next is written, so training waits for the copy only if
// that comes first, and then at memory's speed: whatever the thread has not begun, it does itself.
//
// Begin, AwaitCopied and Clear are the owner's thread's; CopyAll, slice and DropMemory those of the
// thread that copies, which has ended before Clear. MayOverwrite is thread-safe.
#ifndef TESSERA_WORKER_EXECUTOR_STATE_COPY_H_
#define TESSERA_WORKER_EXECUTOR_STATE_COPY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "layout/values.h"

namespace tessera {

class StateCopy {
 public:
  // `slices` of `version` stay where they are, and unchanged as long as MayOverwrite forbids it.
  // Once `stopped` is raised nobody goes on copying. It is not owned and outlives the copy.
  // Errors: ResourceExhausted  no memory for so many bytes.
  absl::Status Begin(int64_t version, std::vector<ConstValues> slices,
                     const std::atomic<bool>* stopped);
  // Copies until all is; false: stopped before. The version may be overwritten, either way.
  bool CopyAll();
  // Whether version `step` of the state may be written: what it overwrites is not being copied.
  bool MayOverwrite(int64_t step) const;
  // Copies, and waits, until it may.
  void AwaitCopied(int64_t step);
  // The i-th slice's copy, where CopyAll has been through.
  ConstValues slice(size_t i) const;
  int64_t size_bytes() const { return size_bytes_; }
  // Gives the memory back, where CopyAll has been through.
  void DropMemory() { copy_.reset(); }
  // As if nothing had begun.
  void Clear();

 private:
  struct Piece {
    const std::byte* from;
    int64_t offset_bytes;  // In the copy.
    int64_t size_bytes;
  };
  struct Free {
    void operator()(std::byte* memory) const { free(memory); }
  };

  // Pieces that nobody else has begun.
  void CopyPieces();
  bool MayOverwriteLocked(int64_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::atomic<bool>* stopped_ = nullptr;
  int64_t size_bytes_ = 0;
  std::vector<ConstValues> slices_;
  std::vector<int64_t> offsets_bytes_;  // Of the slices, in the copy.
  std::vector<Piece> pieces_;
  std::unique_ptr<std::byte, Free> copy_;
  std::atomic<size_t> next_piece_{0}, num_copied_{0};

  mutable absl::Mutex mu_;
  std::optional<int64_t> copying_ ABSL_GUARDED_BY(mu_);  // The version.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_STATE_COPY_H_

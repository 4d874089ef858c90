// One version of a rank's state that is being saved while training continues: it is written from
// its place for as long as it is valid there, and only the rest is copied then.
//
//   slices:      0 ──────────── front ─────────────────────── end
//                    taken  ───►      what is still in place  ◄───  copied, from a time on
//                  by the writer
//
// A version is valid until the step after next is written. The thread that is about to write that
// step copies the rest too, at memory's speed, and waits for nothing else, in particular not for a
// disk. So a save that is written before the next step is taken costs no copy, and a slower save
// costs a copy in proportion.
//
// Begin, StartCopying, AwaitCopied and Clear are the owner's thread's, Take and EndTaking the writing
// thread's (EndTaking the owner's where there is none), CopyBehind a third one's; both have ended
// before Clear. MayOverwrite and is_held are thread-safe.
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_SAVED_VERSION_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_SAVED_VERSION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "checkpoint/storage/byte_source.h"
#include "layout/values.h"

namespace tessera {

class SavedVersion {
 public:
  // `slices` of `version` stay where they are, and unchanged as long as MayOverwrite forbids it.
  // Memory for a copy of all is reserved, and not touched. Once `stopped` is raised copying ends,
  // and the taken data is void. It is not owned and outlives this.
  // Errors: ResourceExhausted  no memory for so many bytes.
  absl::Status Begin(int64_t version, std::vector<ConstValues> slices,
                     const std::atomic<bool>* stopped);
  // The i-th slice's bytes. Slices are taken in their order, each once; before DropMemory.
  std::unique_ptr<ByteSource> Slice(size_t i);
  // Nothing is taken any more, so copying is no longer needed: waits for threads that copy, and
  // then the version may be overwritten.
  void EndTaking();
  // Waits for StartCopying, then copies from the end what is not taken. Returns when there is nothing
  // left to copy.
  void CopyBehind();
  void StartCopying();
  // Whether it is still needed in place.
  bool is_held() const { return held_.load(std::memory_order_acquire) != kNone; }
  // Whether version `step` of the state may be written: what it overwrites is not to be taken.
  bool MayOverwrite(int64_t step) const {
    const int64_t held = held_.load(std::memory_order_acquire);
    return held == kNone || step < held + 2;
  }
  // Called before each step is written. Copies, and waits for other copying threads, until `step`
  // may be written.
  void AwaitCopied(int64_t step);
  // How much was copied so far. Thread-safe.
  int64_t copied_bytes() const { return copied_bytes_.load(); }
  // How many threads copy at the moment. Thread-safe; for tests.
  struct Hands {
    bool taking = false;
    int copying = 0;
  };
  Hands hands() const;
  // Gives the memory back, after EndTaking.
  void DropMemory() { copy_.reset(); }
  // As if nothing had started.
  void Clear();

 private:
  class SliceBytes;
  static constexpr int64_t kNone = -1;

  struct Piece {
    const std::byte* from;
    int64_t offset_bytes;  // Of all slices, end to end; and in the copy.
    int64_t size_bytes;
  };
  struct Free {
    void operator()(std::byte* memory) const { free(memory); }
  };

  const char* Take(size_t slice, int64_t at_bytes, int64_t size_bytes, char* room);
  // The last piece that nobody has taken or started to copy; false: there is none.
  bool CopyOne();
  // Waits until all started pieces are done, while nobody starts to take: every piece that was not
  // taken is in the copy from here on.
  void LetGo();

  const std::atomic<bool>* stopped_ = nullptr;
  int64_t size_bytes_ = 0;
  std::vector<ConstValues> slices_;
  std::vector<int64_t> offsets_bytes_;  // Of the slices.
  std::vector<Piece> pieces_;
  std::unique_ptr<std::byte, Free> copy_;
  std::atomic<int64_t> held_{kNone};  // The version, as long as it is needed in place.
  std::atomic<int64_t> copied_bytes_{0};

  // Not held while copying, since a copying thread may be descheduled.
  mutable absl::Mutex mu_;
  bool may_copy_ ABSL_GUARDED_BY(mu_) = false;
  bool is_taking_ ABSL_GUARDED_BY(mu_) = false;  // From the version in place.
  bool lets_go_ ABSL_GUARDED_BY(mu_) = false;
  int copying_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t front_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  size_t begun_ ABSL_GUARDED_BY(mu_) = 0;  // Pieces from this one on are copied, or being copied.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_SAVED_VERSION_H_

// A checkpoint that is written while training continues.
//
//   Prepare: takes note ──► Start: a thread writes files, manifest, name
//                           training continues; AwaitCopied before each step
//
// The version is written in place. After the vote for the next step another thread copies what is not
// written yet (saved_version.h): the rank needs as much more memory as is copied, until
// the files are written. What is a copy that stays already, as a GPU's state in host memory is, is
// written from there. The threads have a low priority,
// so that training has the processors first. One at a time. status() and MayOverwrite are
// thread-safe, the rest is the owner's thread's.
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_BACKGROUND_SAVE_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_BACKGROUND_SAVE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/checkpoint.pb.h"
#include "worker/comm/communicator.h"
#include "worker/engine/state_files.h"
#include "worker/executor/executor_memory.h"
#include "worker/executor/save/checkpoint_save.h"
#include "worker/executor/save/saved_version.h"

namespace tessera {

class BackgroundSave {
 public:
  // `memory` is not owned and outlives this.
  explicit BackgroundSave(const ExecutorMemory* memory) : memory_(*memory) {}
  ~BackgroundSave() { End(); }

  // Takes note of the state, of what `request` has this rank write, and reserves memory for a copy;
  // what was saved before has ended. The save is given up as `control` says, whose flags outlive
  // it; the copy once it says `stopped`, which it must have. Errors: ResourceExhausted  no memory
  // for it.
  absl::Status Prepare(const v1::SaveRequest& request, const SavedState& state,
                       SaveControl control);
  // `outcome`: as SaveCheckpoint returned it.
  using Over = std::function<void(const v1::SaveRequest& request, const absl::Status& outcome,
                                  const v1::SaveReply& reply)>;
  // Until End the communicator, which is not owned, is the thread's that saves; it calls `over`
  // last. Errors: ResourceExhausted  no thread; `over` is not called then.
  absl::Status Start(Communicator* communicator, Over over);
  // Waits for the threads, if there are any, and forgets the version.
  void End();
  // As SavedVersion has them, of what is being saved. AwaitCopied is called before each step is
  // written, whether something is being saved or not.
  bool MayOverwrite(int64_t step) const { return version_.MayOverwrite(step); }
  void AwaitCopied(int64_t step);
  v1::SaveStatus status() const;

 private:
  // Array, unit and parameter.
  using Key = std::tuple<StateArray, int, int>;
  static Key KeyOf(const CheckpointSlice& slice) {
    return {slice.array, slice.segment.unit, slice.segment.parameter};
  }

  absl::Status StartThreads(Communicator* communicator, Over over);
  void Run(Communicator* communicator, const Over& over);
  absl::Status Save(Communicator* communicator, v1::SaveReply* reply);

  const ExecutorMemory& memory_;
  // Of the save under way; the thread reads them.
  v1::SaveRequest request_;
  TrainingProgress progress_;
  SaveControl control_;
  std::map<Key, size_t> slices_;  // Their places among all.
  bool stays_ = false;            // They need no copy, and are:
  std::vector<ConstValues> staying_;
  SavedVersion version_;
  std::atomic<int64_t> written_bytes_{0};
  std::thread thread_, copier_;

  mutable absl::Mutex mu_;
  v1::SaveStatus status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_BACKGROUND_SAVE_H_

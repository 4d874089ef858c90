// A checkpoint that is written while training goes on.
//
//   Copy: the rank's slices ──► training goes on ──► Start: files, manifest, name: on a thread
//
// What training waits for is the copy, at memory's speed; the rank holds that much more memory
// until the save is over. One at a time. status() and Cancel are thread-safe, the rest is the
// owner's thread's.
#ifndef TESSERA_WORKER_EXECUTOR_BACKGROUND_SAVE_H_
#define TESSERA_WORKER_EXECUTOR_BACKGROUND_SAVE_H_

#include <atomic>
#include <cstddef>
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

namespace tessera {

class BackgroundSave {
 public:
  // `memory` is not owned and outlives this.
  explicit BackgroundSave(const ExecutorMemory* memory) : memory_(*memory) {}
  ~BackgroundSave() { End(); }

  // Takes a copy of the state; what was saved before has ended.
  // Errors: ResourceExhausted  no memory for it.
  absl::Status Copy(const v1::SaveRequest& request, const SavedState& state);
  // Saves the copy. Until End the communicator, which is not owned, is the thread's; it calls
  // `over` last, with the communicator's error if the ranks could not agree. The save is given up
  // between two slices once `stopped`.
  // Errors: ResourceExhausted  no thread; `over` is not called then.
  absl::Status Start(Communicator* communicator, const std::atomic<bool>* stopped,
                     std::function<void(const absl::Status&)> over);
  // What runs is given up, on all ranks, unless its files are all written: then it is published.
  // Thread-safe; nothing if none runs.
  void Cancel() { cancelled_.store(true); }
  // Waits for the thread, if there is one, and forgets the copy.
  void End();
  v1::SaveStatus status() const;

 private:
  // Array, unit and parameter.
  using Key = std::tuple<StateArray, int, int>;

  absl::Status CopySlices(const SavedState& state, int64_t* all_bytes);
  void Run(Communicator* communicator, const std::atomic<bool>* stopped,
           const std::function<void(const absl::Status&)>& over);
  void Forget();

  const ExecutorMemory& memory_;
  // Of the save under way; the thread reads them.
  v1::SaveRequest request_;
  TrainingProgress progress_;
  std::vector<StateArray> moments_;
  std::unique_ptr<std::byte[]> copy_;
  std::map<Key, ConstValues> values_;  // In the copy.
  std::atomic<int64_t> written_bytes_{0};
  std::atomic<bool> cancelled_{false};
  std::thread thread_;

  mutable absl::Mutex mu_;
  v1::SaveStatus status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_BACKGROUND_SAVE_H_

// The engine's interface to files, about which it knows nothing itself.
//
//   trainer ── request ──► engine ── Save(request, state) ──► files ── reply ──► trainer
//
// Requests and replies are between the trainer and the implementation. Both calls are collective:
// every rank makes them at the same point of its order, and gets the same outcome: a reply, or an
// agreed error (agreed_error.h). Any other error: the ranks could not agree on an outcome. If `own` is
// an error, this rank cannot take part, and no rank does. Called by the engine's thread.
#ifndef TESSERA_WORKER_ENGINE_STATE_FILES_H_
#define TESSERA_WORKER_ENGINE_STATE_FILES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_memory.h"
#include "job/training_progress.h"
#include "layout/values.h"
#include "worker/engine/sharded_optimizer.h"

namespace tessera {

// A whole version of a rank's state. Nobody writes to it during the call, and after it not before
// StateFiles::MayOverwrite, or where it stays, AwaitSaved.
struct SavedState {
  int64_t version = 0;  // The step that made it; it is valid until version + 2 is started.
  TrainingProgress progress;
  std::vector<StateArray> moments;  // Which there are.
  absl::FunctionRef<ConstValues(StateArray, const ShardSegment&)> values;
  // It is a copy of the version already, for files alone, which training does not write to.
  bool stays = false;
};

// Takes the elements of a version to come, each of them once. Called by the engine's thread, once
// all ranks are in the call: what trainers have of the parameters is overwritten as well, and comes
// back where the ranks do not agree to have the version.
class StateWriter {
 public:
  virtual ~StateWriter() = default;
  // Elements [begin_elements, begin_elements + values.size()) of the segment become `values`, of
  // the segment's dtype. `values` are read at once, and from the CPU's caches if they are few. (By
  // reference: copying just-written values stalls while much is being stored.)
  virtual void Set(StateArray array, const ShardSegment& segment, int64_t begin_elements,
                   const ConstValues& values) = 0;
  virtual void Clear(StateArray array, const ShardSegment& segment) = 0;  // To zero.
  // As in the version before; nothing if this is the first.
  virtual void Keep(StateArray array, const ShardSegment& segment) = 0;
};

// A version to come. Elements that are neither set nor kept are undefined; in the first version they are
// zero.
struct LoadedState {
  // The job has no values yet: all must be set.
  bool first = false;
  std::vector<StateArray> moments;
  // Moments are set or kept if `progress` is set, and stay otherwise.
  StateWriter* writer = nullptr;
  // Set where moments were loaded too: of all parameters, `before`'s of those that were not loaded.
  // The groups are not looked at.
  std::optional<TrainingProgress> progress;
  TrainingProgress before;  // Where training stands; nothing if this is the first.
  // Set, if this is rank 0: the model's buffers that the file has, by number, all bytes of each.
  std::map<int, std::string> buffers = {};
};

class StateFiles {
 public:
  virtual ~StateFiles() = default;
  virtual absl::StatusOr<std::string> Save(const std::string& request, const SavedState& state,
                                           const absl::Status& own) = 0;
  virtual absl::StatusOr<std::string> Load(const std::string& request, LoadedState* state,
                                           const absl::Status& own) = 0;
  // What identifies it among saves of one step, the same on all ranks; 0: it is made each time that
  // it is asked for. (Neither is collective.)
  virtual uint64_t IdOfSave(const std::string& request) const = 0;
  // How what Save began and left to another thread goes. Of this rank alone.
  virtual std::string SaveStatus() = 0;
  // That is given up if it is not too late. Of this rank alone; all learn the outcome.
  virtual void CancelSave() = 0;
  // Whether version `step` of the state may be written: nothing that it overwrites is being saved.
  // Thread-safe.
  virtual bool MayOverwrite(int64_t step) const = 0;
  // Waits until it may, for the time of a copy in memory at most. Called by the engine's thread
  // before each version is written, whether anything is being saved or not.
  virtual void AwaitOverwrite(int64_t step) = 0;
  // Waits until what Save left to another thread is over, and so reads nothing any more. Called by
  // the engine's thread.
  virtual void AwaitSaved() = 0;
  // The number of the checkpoint that is wanted from outside and that this rank could save now; 0:
  // none. Where all ranks say the same at a step, their trainers ask for it right after the step.
  virtual int64_t wanted_save() const = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_STATE_FILES_H_

// All ranks of a group write one checkpoint, each the bytes that it owns (checkpoint/manifest/manifest.h).
// Collective: every rank calls it at the same point of its order. Thread-compatible.
//
//   rank 0: folder and files ──► all: own slices, synced, with checksums ──► rank 0: manifest, name
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_CHECKPOINT_SAVE_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_CHECKPOINT_SAVE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/storage/byte_source.h"
#include "job/training_progress.h"
#include "proto/checkpoint.pb.h"
#include "worker/comm/communicator.h"
#include "worker/engine/state_files.h"
#include "worker/executor/executor_memory.h"
#include "worker/executor/save/checkpoint_slices.h"

namespace tessera {

// What others say of a save under way, and are told. All pointers and `wrote` may be null.
struct SaveControl {
  const std::atomic<bool>* stopped = nullptr;    // The epoch ends.
  const std::atomic<bool>* cancelled = nullptr;  // The requester has cancelled it.
  // So much more of the state was written, by this rank.
  std::function<void(int64_t bytes)> wrote = nullptr;
  int64_t direct_write_bytes = 0;  // As DirectWrites has it.
  std::string asked_for = {};      // What the manifest has as `request`.
};

// What a rank has to save.
struct StateToSave {
  TrainingProgress progress;
  // The bytes of a slice, in the segment's dtype. Each of SlicesToWrite is asked for once, in their
  // order, and written before the next one is.
  std::function<std::unique_ptr<ByteSource>(const CheckpointSlice& slice)> bytes;
};

// A state that stays as it is; outlives what this returns.
StateToSave InMemory(const SavedState& state);

// Whether the save continues.
// Errors: Aborted  stopped; Cancelled.
absl::Status CheckGoesOn(const SaveControl& control);

// `request`: checked, and the same on all ranks but for what is each one's own. OK once the
// checkpoint has its name and is durable. Given up between two slices, and once more when all are
// written: with Aborted once `stopped`, with Cancelled once `cancelled`, on whichever rank. `reply`:
// after an error, too, what it says of removed checkpoints holds.
// Errors: agreed ones (agreed_error.h), which are what JoinOutcomes (agreement.h) says of the ranks:
// then the checkpoint of that name, if there was one, is as before; the communicator's.
absl::Status SaveCheckpoint(const v1::SaveRequest& request, const ExecutorMemory& memory,
                            const StateToSave& state, Communicator* communicator,
                            const SaveControl& control, v1::SaveReply* reply);

// Those that this rank writes, in their order.
std::vector<CheckpointSlice> SlicesToWrite(const v1::SaveRequest& request,
                                           const ExecutorMemory& memory,
                                           const std::vector<bool>& has_state);

// By parameter of the job: whether the checkpoint has optimizer state of it.
std::vector<bool> HasStates(const ModelLayout& layout, const TrainingProgress& progress);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_CHECKPOINT_SAVE_H_

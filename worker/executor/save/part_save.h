// All ranks of a group write one checkpoint in parts, each what it holds into a folder of its own
// (checkpoint/parts/checkpoint_part.h), which need not be on a file system that others see.
// Collective: every rank calls it at the same point of its order. Thread-compatible.
//
//   each: PATH/rank-R.partial/, written, synced ──► all agree ──► each: PATH/rank-R ──► all agree
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_PART_SAVE_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_PART_SAVE_H_

#include <string>

#include "absl/status/status.h"
#include "base/ids.h"
#include "proto/checkpoint.pb.h"
#include "worker/comm/communicator.h"
#include "worker/engine/state_files.h"
#include "worker/executor/executor_memory.h"
#include "worker/executor/save/checkpoint_save.h"

namespace tessera {

// Where the rank's part gets its name.
std::string PartPath(const v1::SaveRequest& request, Rank rank);

// `request`: checked, and the same on all ranks except for path, buffers and bytes. A part is
// replaced only by one of the same job and step, or request: by a save that is repeated. OK once
// every part has its name and is durable. Given up as SaveCheckpoint.
// Errors: agreed ones (agreed_error.h), which are what JoinOutcomes (agreement.h) says of the ranks:
// then no part of this save is left; the communicator's.
absl::Status SaveParts(const v1::SaveRequest& request, const ExecutorMemory& memory,
                       const StateToSave& state, Communicator* communicator,
                       const SaveControl& control, v1::SaveReply* reply);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_PART_SAVE_H_

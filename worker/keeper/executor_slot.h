// What a hosted job knows of one of its ranks: the executor and the trainer that it has, and what
// they said last. A plain value, guarded by the job's lock.
#ifndef TESSERA_WORKER_KEEPER_EXECUTOR_SLOT_H_
#define TESSERA_WORKER_KEEPER_EXECUTOR_SLOT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/ids.h"
#include "base/unique_fd.h"
#include "proto/coordinator.pb.h"
#include "proto/local.pb.h"
#include "worker/keeper/executor_launcher.h"

namespace tessera {

enum class AttachState { kFree, kAttached };
// What a trainer has of its rank from now on.
struct GivenRank {
  v1::AttachResponse response;
  std::vector<UniqueFd> fds;  // As JobRegions::TrainerFds; of a trainer that hosts the rank's
                              // executor, its end of that one's socket at last.
};
// An executor in the process of a trainer: the worker's end of its socket.
struct HostOffer {
  UniqueFd socket;
  int pid = 0;
  Incarnation attachment;
};
struct HostedRank {
  std::unique_ptr<RunningExecutor> executor;
  UniqueFd socket;  // The worker's end.
  bool ready = false;
  bool quiet = false;     // Outside an epoch.
  bool ending = false;    // It was told to.
  std::string why_ended;  // By the worker itself, for what the executor did; else empty.
  Incarnation host;       // The attachment whose trainer has it in its process; 0: none has.
  bool left = false;      // It has left the running epoch by itself, with nothing under way.
  bool vacant = false;    // The running epoch continues without an executor of this rank.
  absl::Time launched_at, ready_at;
  std::unique_ptr<HostOffer> offer;  // For the next launch.
  std::string address;  // Where it listens for ranks of other workers, in the current epoch.
  AttachState attach_state = AttachState::kFree;
  Incarnation attachment;
  // The trainer attached when the previous daemon ended, until it attaches again, ends, or is late.
  Incarnation former;
  UniqueFd former_process;
  absl::Time former_until;
  v1::OrderAnnouncement pending_order;  // epoch 0: none.
  v1::StepReport last_report;           // epoch 0: none.
  std::string saving_path;              // Of the model file that is being written; else empty.
  v1::SaveReport open_save;             // That its executor has started and not ended; 0: none.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_EXECUTOR_SLOT_H_

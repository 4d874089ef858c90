// Slices of the state of a job that is handed over, straight from the memory of this worker's
// ranks: nobody writes there while the hand-over stands, so nothing is held, copied or put on a
// disk.
//
//   Create ─► Await: every rank has completed the step ─► Progress, Read, Read, ...
//
// Where the job trains on meanwhile, since the hand-over was cancelled, Read says so as soon as it
// can be seen; it need not be at once. Maps no state: memory is needed for a piece at a time. Holds
// on to the memory of the job's ranks, also where the job is dropped. Thread-compatible.
#ifndef TESSERA_WORKER_KEEPER_FROZEN_STATE_H_
#define TESSERA_WORKER_KEEPER_FROZEN_STATE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "job/job_memory.h"
#include "job/live_tensors.h"
#include "proto/live_state.pb.h"
#include "worker/engine/group_page.h"
#include "worker/keeper/job_regions.h"

namespace tessera {

class FrozenState {
 public:
  // Small, since every hop between here and the reader buffers some.
  static constexpr int64_t kMaxPieceBytes = 256 << 10;

  // Errors: FailedPrecondition  the job has no values; ResourceExhausted  no descriptors
  static absl::StatusOr<std::unique_ptr<FrozenState>> Create(const JobRegions& regions,
                                                             int64_t step);

  // Errors: DeadlineExceeded    some rank has not completed the step
  //         FailedPrecondition  some rank is past it
  //         Cancelled           `cancelled` became true
  absl::Status Await(absl::Duration patience, absl::FunctionRef<bool()> cancelled);
  // Of the step, with the update counts of all parameters.
  v1::LiveCopied Progress() const;
  // The next piece of the range, whose first `done` elements were read. Returns how many it has.
  // Errors: InvalidArgument  no rank of this worker has the range (names it), or done is not in it
  //         Aborted          the job trains on
  absl::StatusOr<int64_t> Read(const v1::LiveRange& range, int64_t done, v1::LivePiece* piece);

 private:
  struct RankState {
    std::unique_ptr<MemoryReader> state;
    const RankRecord* record = nullptr;  // In group_.
  };
  FrozenState() = default;
  absl::Status CheckStands() const;
  // Where the range is in its rank's state, or of a buffer in the group region. Errors:
  // InvalidArgument.
  absl::StatusOr<int64_t> Locate(const v1::LiveRange& range, int64_t* element_bytes) const;
  absl::StatusOr<int64_t> LocateBuffer(const v1::LiveRange& range, int64_t* element_bytes) const;

  int64_t step_ = 0;
  ModelLayout layout_;
  JobMemory memory_;
  LocalRanks local_;
  std::vector<LiveTensor> parameters_;  // All, by number.
  Mapping group_;
  std::unique_ptr<MemoryReader> buffers_;  // Reads the group region; null: rank 0 is not here.
  UpdateCounts counts_;
  std::vector<RankState> ranks_;  // This worker's.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_FROZEN_STATE_H_

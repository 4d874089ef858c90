// A copy of the slices that this worker's ranks have of some tensors, all as one step left them,
// made while training goes on.
//
//   Create ─► Hold ──────────► CopyAt(step) ─────────────────────────► Next, Next, ...
//             newest version   that version, once every rank has it:   slice by slice
//             of each rank     state ─► spool file, then let go
//
// Ranks of a job may be a step apart; whoever asks several workers takes the newest step that any
// of them answered. Holding delays a rank only if it is about to take the second step from then
// (worker/engine/state_hold.h). The state of no rank is mapped here and the copy lies in a file, so
// that memory is needed for a piece at a time only. Thread-compatible. Holds on to the memory of
// the job's ranks until it is copied, also where the job is dropped meanwhile.
#ifndef TESSERA_WORKER_KEEPER_STATE_SNAPSHOT_H_
#define TESSERA_WORKER_KEEPER_STATE_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "job/live_tensors.h"
#include "worker/engine/group_page.h"
#include "worker/keeper/job_regions.h"
#include "worker/keeper/spool_file.h"
#include "worker/memory/job_memory.h"

namespace tessera {

class StateSnapshot {
 public:
  struct Request {
    std::vector<int> parameters;  // Their numbers in the job, rising.
    bool moments = false;
    // What to round to; nothing: what the state is in.
    std::optional<DType> dtype;
    std::string spool_folder;
  };
  // Errors: InvalidArgument     no such parameters, or a dtype that they cannot be rounded to
  //         FailedPrecondition  the job has no values yet
  //         ResourceExhausted   no descriptors
  static absl::StatusOr<std::unique_ptr<StateSnapshot>> Create(const JobRegions& regions,
                                                               const Request& request);
  ~StateSnapshot();  // Lets go of what is held.
  StateSnapshot(const StateSnapshot&) = delete;
  StateSnapshot& operator=(const StateSnapshot&) = delete;

  // Holds the newest version of each rank whose slices are asked for; the newest one's step.
  // Errors: Unavailable  another snapshot of the job is being made
  absl::StatusOr<int64_t> Hold();

  struct Copied {
    int64_t trained_step = 0;
    std::vector<int64_t> update_counts;  // By parameter of the request.
  };
  // `step` is what Hold() returned here or at another worker of the job. Looks at `cancelled` now
  // and then.
  // Errors: DeadlineExceeded  some rank does not get to `step` in time (names it)
  //         Aborted           a rank waited for too long and went on; the copy was void
  //         Cancelled         `cancelled` became true
  //         as SpoolFile
  absl::StatusOr<Copied> CopyAt(int64_t step, absl::Duration patience,
                                absl::FunctionRef<bool()> cancelled);

  struct Piece {
    int64_t offset_elements = 0;  // In its tensor.
    std::string bytes;            // At most kPieceBytes; of no two slices.
  };
  static constexpr int64_t kMaxPieceBytes = 256 << 10;
  // The next piece in order; nothing: that was all. Errors: as SpoolFile::Read.
  absl::StatusOr<std::optional<Piece>> Next();

 private:
  struct RankState {
    int rank = 0;
    UniqueFd state;
    RankRecord* record = nullptr;  // In group_.
    std::optional<int64_t> held;
  };
  StateSnapshot() = default;
  absl::Status CollectRanks(const JobRegions& regions);
  absl::Status AwaitStep(RankState* rank, int64_t step, absl::Time deadline,
                         absl::FunctionRef<bool()> cancelled);
  absl::Status CopySlice(const LiveSlice& slice, int64_t step, std::string* buffer,
                         absl::FunctionRef<bool()> cancelled);
  Copied ReadProgress(int64_t step) const;
  // False where some hold was taken away.
  bool ReleaseAll();
  RankState& Of(int rank);
  DType StoredDType(const LiveSlice& slice) const;

  Request request_;
  ModelLayout layout_;
  JobMemory memory_;
  std::vector<LiveTensor> tensors_;
  LocalRanks local_;
  Mapping group_;
  UpdateCounts counts_;
  std::vector<RankState> ranks_;  // That have any of it.
  std::optional<SpoolFile> spool_;
  // Where Next() is.
  std::vector<LiveSlice> slices_;
  size_t next_slice_ = 0;
  int64_t done_elements_ = 0;  // Of that slice.
  int64_t offset_bytes_ = 0;   // In the spool file.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_STATE_SNAPSHOT_H_

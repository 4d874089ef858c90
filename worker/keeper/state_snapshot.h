// The slices of some tensors that this worker's ranks own, all as of one step, read while training
// continues.
//
//   Create ─► Hold ──────────► Begin(step) ──────────► Next, Next, ...  from the front, slice by
//             newest version   that version, once                       slice, to a reader
//             of each rank     every rank has it      Copy              from the end into a spool
//                                                                       file
//                                                     Where Next and Copy meet, the hold is let go.
//
// Ranks of a job may be a step apart; a client that asks several workers takes the newest step that
// any of them answered. Holding delays a rank only if it is about to take the second step from then
// (worker/engine/state_hold.h), and then Next() helps to copy before it continues. Next() reads
// what is held until somebody has copied the rest, and from then on the file: a reader as fast as
// the copy needs no file, and a slow one delays nothing.
//
// The state of no rank is mapped here and the copy is stored in a file, so that memory is needed
// for one piece at a time only. One thread calls Hold() and then Begin(); from then on one thread
// calls Next() and any thread Copy(). Holds on to the memory of the job's ranks until it lets go,
// also if the job is dropped meanwhile.
#ifndef TESSERA_WORKER_KEEPER_STATE_SNAPSHOT_H_
#define TESSERA_WORKER_KEEPER_STATE_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "job/job_memory.h"
#include "job/live_tensors.h"
#include "worker/engine/group_page.h"
#include "worker/keeper/job_regions.h"
#include "worker/keeper/spool_file.h"

namespace tessera {

class StateSnapshot {
 public:
  struct Request {
    std::vector<int> parameters;  // Their numbers in the job, rising.
    bool moments = false;
    std::vector<int> buffers;  // The same of buffers, which are given as they are.
    // What to round parameters and moments to; nothing: what the state is in.
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

  // Holds the newest version of each rank whose slices are requested; returns the newest one's
  // step.
  // Errors: Unavailable  another snapshot of the job is being made
  absl::StatusOr<int64_t> Hold();

  struct Progress {
    int64_t trained_step = 0;
    std::vector<int64_t> update_counts;   // By parameter of the request.
    std::vector<HyperParameters> groups;  // That step's, by param group of the job.
  };
  // `step` is what Hold() returned here or at another worker of the job. Looks at `cancelled` now
  // and then.
  // Errors: DeadlineExceeded  some rank does not get to `step` in time (names it)
  //         Aborted           a rank waited for too long and continued
  //         Cancelled         `cancelled` became true
  //         as SpoolFile::Create
  absl::StatusOr<Progress> Begin(int64_t step, absl::Duration patience,
                                 absl::FunctionRef<bool()> cancelled);
  // Whether a rank already writes the step after the held one, so that the one after that is near.
  bool IsTrainingOn() const { return HasBegunToWrite(step_ + 1); }
  // Returns when nothing is held any more; whether all is copied or was given out before.
  // Errors: Aborted  a rank waited for too long and continued; what is not given out yet is void
  //         Cancelled, or as SpoolFile::WriteAt; Next() returns them too
  absl::Status Copy(absl::FunctionRef<bool()> cancelled);

  struct Piece {
    int64_t offset_elements = 0;  // In its tensor.
    int64_t size_bytes = 0;       // At most kMaxPieceBytes; never spans two slices.
  };
  static constexpr int64_t kMaxPieceBytes = 1 << 20;
  // Returns where to put a piece of so many bytes.
  using Room = absl::FunctionRef<char*(int64_t size_bytes)>;
  // The next piece in order; nothing: that was all. Waits for Copy() where that has started with
  // the next piece.
  // Errors: as Copy(), SpoolFile::Read.
  absl::StatusOr<std::optional<Piece>> Next(Room room);

 private:
  struct RankState {
    int rank = 0;
    std::unique_ptr<MemoryReader> state;
    RankRecord* record = nullptr;  // In group_.
    std::optional<int64_t> held;
  };
  // What is copied, or given out, at once.
  struct Chunk {
    int slice = 0;
    int64_t begin_elements = 0;  // In the slice.
    int64_t numel = 0;
    int64_t offset_bytes = 0;  // In the spool file.
  };
  StateSnapshot() = default;
  absl::Status CollectRanks(const JobRegions& regions);
  absl::Status AwaitStep(RankState* rank, int64_t step, absl::Time deadline,
                         absl::FunctionRef<bool()> cancelled);
  int64_t CutIntoChunks();  // How many bytes they are.
  // Of a claimed chunk; ends the claim afterwards.
  absl::Status ReadHeld(const Chunk& chunk, char* into) const;
  void EndClaim(const absl::Status& status);
  const Chunk* ClaimLast();
  const Chunk* ClaimFirst();
  // Lets go once nothing is to be read any more.
  void MaybeLetGo() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether an executor has; where it is the step after the next, it waits for the end of the hold.
  bool HasBegunToWrite(int64_t step) const;
  // A chunk, as it is stored, from where it is stored now.
  absl::Status ReadNext(char* into);
  Progress ReadProgress() const;
  // False where some hold was taken away.
  bool ReleaseAll();
  const RankState& Of(int rank) const;
  bool IsBuffer(const LiveSlice& slice) const {
    return tensors_[slice.tensor].array == LiveArray::kBuffer;
  }
  DType StoredDType(const LiveSlice& slice) const;  // Of a slice that is not a buffer.
  int64_t ElementBytes(const LiveSlice& slice) const;
  int64_t StoredBytes(const Chunk& chunk) const;
  // Where the slice's first element is, in its rank's state or the group region.
  int64_t OffsetBytes(const LiveSlice& slice) const;

  Request request_;
  ModelLayout layout_;
  std::vector<HyperParameters> own_groups_;  // The job's, until a step has its own.
  JobMemory memory_;
  std::vector<LiveTensor> tensors_;
  LocalRanks local_;
  Mapping group_;
  std::unique_ptr<MemoryReader> buffers_;  // Reads the group region; null: no buffer is asked for.
  UpdateCounts counts_;
  std::vector<RankState> ranks_;  // That have any of it.
  int64_t step_ = 0;
  std::optional<SpoolFile> spool_;
  std::vector<LiveSlice> slices_;
  std::vector<Chunk> chunks_;
  size_t next_ = 0;  // Of Next().

  absl::Mutex mu_;
  // Nobody has claimed those from front_ to back_ yet; those before were given out, those after
  // were copied.
  size_t front_ ABSL_GUARDED_BY(mu_) = 0;
  size_t back_ ABSL_GUARDED_BY(mu_) = 0;
  int num_claims_ ABSL_GUARDED_BY(mu_) = 0;  // Under way.
  bool let_go_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_STATE_SNAPSHOT_H_

// Moves a running job, from memory, to a world of another size, with other units and strategies or
// on other hosts: its trainers hand it over, and those of a new job take it over.
//
//   old job, all ranks:  HandOver(&session, {.trainer_state = my_position})
//   new job, all ranks:  Session::Open(options of another world)
//                        ASSIGN_OR_RETURN(TakenOver taken, TakeOver(&session, {"old"}));
//                        session.next_step() == taken.step + 1
//
// Parameters and the optimizer's state go from the memory of the old job's workers into that of the
// new job's workers, each rank's slices to the rank that owns them, through the coordinator.
// Nothing is gathered, no rank holds more than its own slices and a few pieces, and no disk is
// used. State that trainers' own optimizers keep (local_shards.h) is theirs to hand on. Both jobs
// exist during that time. Whichever process dies, and whenever: the old job alone can take the next
// step once the hand-over is cancelled, the new one alone once all of its ranks are ready, and
// neither of them before that. docs/adr/0032.
// All calls are collective, not within RunStep. Thread-compatible, as the session.
#ifndef TESSERA_HAND_OVER_H_
#define TESSERA_HAND_OVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tessera/checkpoint.h"
#include "tessera/session.h"

namespace tessera {

inline constexpr size_t kMaxHandOverTrainerState = size_t{64} << 10;  // And 4 MiB of all ranks.

struct HandOverOptions {
  // This rank's own bytes for the new trainers: its position in the data, random state.
  std::string trainer_state;
  // For a job that takes it over: until all of its ranks are ready.
  absl::Duration patience = absl::Minutes(10);
};

// Called between two steps; a save in the background ends. Returns once the hand-over has ended.
// Meanwhile no step is taken, the trainers may be killed and the job stays handed over. OK: another
// job has taken this one over. This one is over, and all of its calls return Cancelled.
// Errors: Cancelled           nobody took it over in time, or it was told to resume: the session is
//                             ready for the next step, and everything is as it was
//         Aborted             a process died before all ranks had handed over, or the job was
//                             deleted: as elsewhere, Recover() and try again
//         InvalidArgument     trainer_state or patience out of bounds
//         FailedPrecondition  within a step; no initial values; another rank hands over another
//                             step
//         ResourceExhausted   the ranks' trainer states are too many bytes together
//         DeadlineExceeded    another rank did not come, or the coordinator is away: call this
//                             again to learn whether the job is handed over
//         DataLoss            the job's shards went with the memory of a worker.
absl::Status HandOver(Session* session, const HandOverOptions& options = {});

struct TakeOverOptions {
  std::string from_job;
  absl::Duration timeout = absl::Minutes(10);  // For the old job's trainers to hand it over.
  // Called with TakenOver::buffers once all of the state is here, on all ranks, and before it is
  // the job's first state; called again if that was interrupted. Null: read them from TakenOver.
  std::function<void(const std::vector<NamedTensor>& buffers)> take_buffers = {};
};

struct TakenOver {
  int64_t step = 0;                         // The last one that was taken, as trainers count.
  std::vector<std::string> trainer_states;  // The old job's, by rank; as many as it had ranks.
  // Those of this job's model that the old one published: its rank 0's, on all ranks, and from the
  // first version on what this job publishes. None where the job had its values already.
  std::vector<NamedTensor> buffers = {};
  // Those that it did not: a module keeps its own.
  std::vector<std::string> missing_buffers = {};
};

// In a job without values: gives it parameters, moments, update counts and the step's number of the
// old job, on all ranks or on none; the job's own hyper-parameters are used. Where it was
// interrupted (Aborted), it is called again. In a job that has taken over that very one already it
// changes nothing and returns the same, so that trainers which replace others may call it.
// Errors: InvalidArgument     the models or optimizers differ: naming the tensor
//         FailedPrecondition  the job has values, the hand-over was cancelled, or another job takes
//                             it over
//         NotFound            no job from_job exists
//         DeadlineExceeded    it was not handed over in time; or some rank read for longer than
//                             the others by more than an hour
//         DataLoss            it is lost; or a piece was damaged on its way
//         Aborted             a process died.
// After any but Aborted the session is ready, and nothing is changed on either side.
absl::StatusOr<TakenOver> TakeOver(Session* session, const TakeOverOptions& options);

}  // namespace tessera

#endif  // TESSERA_HAND_OVER_H_

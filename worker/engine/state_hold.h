// Lets a reader copy one version of a rank's state while training continues.
//
// Version s % 2 of the state stands from the end of step s until step s + 2 begins to be written:
//
//   reader (keeper)                         writer (executor)
//     held = s                                writing = s + 2
//     writing >= s + 2? take a newer s        held is s? wait until it is not
//     copy ... held = none                    vote, write
//
// Each says first what it will do and then looks at what the other said, in one total order, so at
// least one of them sees the other. A reader that hangs does not stop training: after a while the
// writer takes the hold away by a compare-and-swap of the same word, and Release() tells the reader
// that its copy is worth nothing. One reader at a time; of one rank one process writes.
//
// A process that maps the state (docs/adr/0052) takes no lock, and nothing waits for it: after its
// read it validates by `writing` that the version was not overwritten meanwhile. So `writing` is set
// before anything is overwritten, and never goes back.
//
// Words start at zero, as fresh mappings do. Versions are numbered by their step, from 0.
#ifndef TESSERA_WORKER_ENGINE_STATE_HOLD_H_
#define TESSERA_WORKER_ENGINE_STATE_HOLD_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "shm/wait_word.h"

namespace tessera {

struct StateHold {
  std::atomic<int64_t> held{0};     // The version's step + 1; 0: none.
  std::atomic<int64_t> writing{0};  // The newest step whose write has started.
  WaitWord changes;                 // Bumped when `held` has changed.
};

// --- The reader's side ---

// Holds the newest whole version, which `applied_step` tells, and returns its step.
// Errors: Unavailable  steps came faster than they could be looked at, or another reader holds one.
absl::StatusOr<int64_t> HoldNewest(StateHold* hold, const std::atomic<int64_t>& applied_step);
// Holds step `to` in place of `from`. It may be one that is not whole yet, but is decided: nothing
// that was not decided is written while any rank of the job holds what it would overwrite.
// Errors: Aborted  the hold was taken away.
absl::Status MoveHold(StateHold* hold, int64_t from, int64_t to);
// Whether the version stood until now. It is held no more, either way.
bool Release(StateHold* hold, int64_t step);

// --- The writer's side ---

// Announces that `step` will be written. Whether it may be now: nobody holds what it overwrites.
bool TryBeginWriting(StateHold* hold, int64_t step);

enum class WriteBegin {
  kAtOnce,
  kWaited,     // A reader was waited for.
  kBrokeHold,  // At the deadline the hold was taken away.
};
// The same, but waits.
// Errors: Aborted  the flag was raised.
absl::StatusOr<WriteBegin> BeginWriting(StateHold* hold, int64_t step, const AbortFlag& abort,
                                        absl::Time deadline);

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_STATE_HOLD_H_

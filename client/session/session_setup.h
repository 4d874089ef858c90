// What the trainers of a job do together before its first step: agree on initial values.
//
//   Broadcast            rank 0's bytes           -> everybody
//   AllGather            everybody's bytes        -> everybody, by rank
//   AgreeOn              everybody's status       -> the first error, for everybody
//   Tell                 one rank's error         -> the ranks that wait for it
//   InitializeFromRank0  rank 0's values          -> the shards of all ranks
//   InitializeSlices     each rank's own slice   -> the shards of all ranks; none needs the whole
//
// Collective: all ranks make the same calls in the same order. Bytes travel through the gradient
// slots and the executors, so they work across whatever the executors work across. As a Session:
// one thread at a time. A model without any element carries no bytes: each rank keeps its own.
// Errors of all: Aborted             as a Session's
//                FailedPrecondition  some gradient is under way; of the initialisers: the job has
//                                    its initial values.
#ifndef TESSERA_CLIENT_SESSION_SESSION_SETUP_H_
#define TESSERA_CLIENT_SESSION_SESSION_SETUP_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "shm/control_page.h"
#include "tessera/session.h"

namespace tessera {

class SessionSetup {
 public:
  explicit SessionSetup(Session* session);  // Not owned.

  // No wait of the session lasts beyond `deadline` from now on; InfiniteFuture: as the options say.
  void LimitWaits(absl::Time deadline);
  // A line in the log of rank 0 where the job has its initial values already.
  void LogIfContinued() const;

  absl::Status Broadcast(absl::Span<char> bytes);
  // `all` holds world_size * own.size() bytes.
  absl::Status AllGather(absl::Span<const char> own, char* all);

  // OK if every rank's is; else the own error, or that of the lowest rank, with "rank R: ".
  absl::Status AgreeOn(const absl::Status& own);
  // An error that every rank finds in what was exchanged; so none of them has to be told.
  absl::Status ErrorOfAll(absl::Status error);
  // An error of this rank's part of a collective call. If the other ranks do not have it, it ends
  // the epoch, so that they get it and do not wait for this rank. Returns it. Recover() follows.
  absl::Status Tell(const absl::Status& own);

  // As Session::Initialize; `fill` is called on rank 0 alone. An error of `fill` is every rank's,
  // as AgreeOn has it, and the job has no initial values then.
  using Filler = std::function<absl::Status(int unit, int parameter, Values values)>;
  absl::Status InitializeFromRank0(const Filler& fill);
  // `fill` writes elements [begin_elements, begin_elements + values.size()) of a parameter, and is
  // asked for those of this rank's slices alone.
  using SliceFiller =
      std::function<absl::Status(int unit, int parameter, int64_t begin_elements, Values values)>;
  absl::Status InitializeSlices(const SliceFiller& fill);

 private:
  absl::Status Finish(const absl::Status& filled);
  // Of the whole unit in the full dtype.
  int64_t WholeBytes(int unit) const;
  // The slot of the largest unit, once nothing else uses it; and a collective operation on it.
  absl::StatusOr<char*> ClaimSlot();
  absl::Status RunOnSlot(OpKind kind);

  Session* const session_;
  int largest_unit_ = 0;  // Whose slot carries bytes.
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_SESSION_SETUP_H_

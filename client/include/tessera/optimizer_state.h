// The optimizer's state of a job, in full: what its moments are, how often each parameter was
// updated, which step was the last.
//
//   ASSIGN_OR_RETURN(TrainingProgress progress, ReadProgress(&session));
//   RETURN_IF_ERROR(ReadMoments(&session, unit, StateArray::kFirstMoment, read));
//
// Moments have their parameters' shapes and full dtype; SGD's first moment is the momentum buffer,
// Adam's are exp_avg and exp_avg_sq. Frozen parameters have none: what is read of them means
// nothing. Updates that a trainer's own optimizer makes (local_shards.h) are not counted here.
#ifndef TESSERA_OPTIMIZER_STATE_H_
#define TESSERA_OPTIMIZER_STATE_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_memory.h"
#include "job/training_progress.h"
#include "tessera/session.h"

namespace tessera {

// Where training stands; of this rank alone, no other has to ask. Parameters in the order of the
// job's units. Errors: Aborted.
absl::StatusOr<TrainingProgress> ReadProgress(Session* session);

// One array of the state of a unit's parameters, whole. Collective, as Session::ReadParameters.
// Errors: InvalidArgument  the job's optimizer has no such array; others as ReadParameters.
absl::Status ReadMoments(Session* session, int unit, StateArray array, const Session::Reader& read);

// Sets moments, update counts and the last step's number: next_step() continues from there.
// `fill` is called for each parameter of all units and each array that the optimizer has, and
// writes over zeroes; each rank's own slice counts. Collective; on all ranks or on none, as
// Session::WriteParameters, and counted as a write. Parameters and reduced gradients stay. Not
// within RunStep. progress.groups must be valid, and is not used.
// Errors: InvalidArgument  progress is not of this job; FailedPrecondition  no initial values, or
//         the ranks set different things; Aborted.
using MomentFiller = std::function<void(StateArray array, int unit, int parameter, Values values)>;
absl::Status WriteOptimizerState(Session* session, const TrainingProgress& progress,
                                 const MomentFiller& fill);

}  // namespace tessera

#endif  // TESSERA_OPTIMIZER_STATE_H_

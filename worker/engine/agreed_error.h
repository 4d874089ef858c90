// The two kinds of errors of a collective request, in one absl::Status.
//
//   agreed      every rank has it: the outcome of the request, for the trainers. Training continues.
//   any other   the ranks could not agree on an outcome: it ends the epoch.
//
// A payload marks an agreed error; Annotate and the status macros keep it. Pure.
#ifndef TESSERA_WORKER_ENGINE_AGREED_ERROR_H_
#define TESSERA_WORKER_ENGINE_AGREED_ERROR_H_

#include "absl/status/status.h"

namespace tessera {

// `status`, which every rank has; OK stays OK.
absl::Status AsAgreed(absl::Status status);
bool IsAgreed(const absl::Status& status);

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_AGREED_ERROR_H_

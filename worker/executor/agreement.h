// One outcome for all ranks. Collective; as thread-safe as the communicator.
#ifndef TESSERA_WORKER_EXECUTOR_AGREEMENT_H_
#define TESSERA_WORKER_EXECUTOR_AGREEMENT_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/comm/communicator.h"

namespace tessera {

// What a trainer is told of an error has room for it, and for what is put before it.
inline constexpr size_t kMaxJoinedBytes = 960;

// The outcomes of all ranks, by rank, as one: OK if all are, else
//
//   save on rank 1: write /a/c.partial/...: No space left on device; rank 3: open /b/...: ...
//
// with the lowest failing rank's code. Ranks with the same error are named together ("ranks 0-2").
// It has at most kMaxJoinedBytes: long causes lose their middle, since they begin with where and
// end with why, and of many different ones the first are told, and how many ranks failed besides.
// Pure. Requires that `what` is short.
absl::Status JoinOutcomes(absl::string_view what, const std::vector<absl::Status>& by_rank);

// JoinOutcomes of every rank's `own`, as an agreed error (agreed_error.h). Any other error is the
// communicator's: the ranks could not agree.
absl::Status AgreeOn(absl::string_view what, const absl::Status& own, Communicator* communicator);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_AGREEMENT_H_

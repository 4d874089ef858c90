// The ranks that a trainer waits for, for the message of a failed wait. Pure.
#ifndef TESSERA_CLIENT_SESSION_MISSING_RANKS_H_
#define TESSERA_CLIENT_SESSION_MISSING_RANKS_H_

#include <string>

#include "proto/coordinator.pb.h"

namespace tessera {

// "rank 2 has no trainer, and was last at step 3 (reduce blocks.0)": all ranks without a trainer;
// if each has one, those that are later than `rank`, the one that waits. Of a job that does not
// run: why. Empty if no rank is known to be missing.
std::string MissingRanks(const v1::Job& job, int rank);

// Whether the job runs, and with a trainer at each rank.
bool AllHaveTrainers(const v1::Job& job);

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_MISSING_RANKS_H_

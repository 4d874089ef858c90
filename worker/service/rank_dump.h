// What a worker knows of one of its ranks: its flight record and what its control page says.
#ifndef TESSERA_WORKER_SERVICE_RANK_DUMP_H_
#define TESSERA_WORKER_SERVICE_RANK_DUMP_H_

#include <string>

#include "base/ids.h"
#include "proto/worker.pb.h"
#include "worker/keeper/job_regions.h"

namespace tessera {

// Reads the rank's shared memory, whatever executor and trainer do to it meanwhile. A flight ring
// whose header was overwritten has no records, and the text says so. Thread-safe.
// Requires a rank of this worker.
v1::DumpRankResponse DumpRank(const JobRegions& regions, const std::string& job_id, Rank rank);

}  // namespace tessera

#endif  // TESSERA_WORKER_SERVICE_RANK_DUMP_H_

// Whether all ranks request the same load, and what a request may ask for.
#ifndef TESSERA_WORKER_EXECUTOR_LOAD_LOAD_AGREEMENT_H_
#define TESSERA_WORKER_EXECUTOR_LOAD_LOAD_AGREEMENT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "proto/checkpoint.pb.h"
#include "worker/comm/communicator.h"
#include "worker/executor/load/load_plan.h"

namespace tessera {

// What a load reads at a time: it is still in a core's cache when it has been summed, and is stored
// to where it belongs from there. Of 64 to 512 KiB the best, by a little.
inline constexpr int64_t kPieceOfLoadBytes = 256 << 10;

// `first`: of a job without values, whose load is strict whatever was asked for.
LoadRules RulesOf(const v1::LoadRequest& request, bool first);

// Whether all ranks ask for the same of whatever files they see: without it each would read by a
// plan of its own. Collective; as thread-safe as the communicator. Errors: as CompareRequestParts.
absl::Status CompareRequests(const v1::LoadRequest& request, Communicator* communicator);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_LOAD_LOAD_AGREEMENT_H_

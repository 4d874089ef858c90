// What a rank of FakeNcclApi receives from a batch that all ranks have come to. Pure.
#ifndef TESSERA_WORKER_COMM_NCCL_FAKE_NCCL_BATCH_H_
#define TESSERA_WORKER_COMM_NCCL_FAKE_NCCL_BATCH_H_

#include <vector>

#include "worker/comm/nccl/fake_nccl_api.h"

namespace tessera {

// For each call of `rank` the bytes that it writes; none for sends. Sums run in rank order, and
// each step of one is rounded to the type, as the library does it. Ends the process where ranks'
// calls do not fit together, which the library does not survive either.
std::vector<std::vector<char>> ReadFakeNcclBatch(
    const std::vector<const std::vector<FakeNcclCall>*>& calls_by_rank, int rank);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_NCCL_FAKE_NCCL_BATCH_H_

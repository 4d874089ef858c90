// FSDP2's way to say when parameters are resharded, as strategies.
//
//   reshard_after_forward   strategy        reshard_group_size
//   true                    FULL_SHARD      0
//   false                   SHARD_GRAD_OP   0
//   k, 1 < k < world_size   FULL_SHARD      k
//
// Pure; thread-safe. Source: torch/distributed/fsdp, fully_shard.
#ifndef TESSERA_JOB_RESHARD_AFTER_FORWARD_H_
#define TESSERA_JOB_RESHARD_AFTER_FORWARD_H_

#include "absl/status/status.h"
#include "job/job_config.h"

namespace tessera {

void SetReshardAfterForward(bool reshard, JobConfig* config);
// Reads config->world_size. 1 is false, world_size is true.
// Errors: InvalidArgument  `group_size` does not divide the world size; nothing was changed.
absl::Status SetReshardAfterForward(int group_size, JobConfig* config);

}  // namespace tessera

#endif  // TESSERA_JOB_RESHARD_AFTER_FORWARD_H_

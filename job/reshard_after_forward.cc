#include "job/reshard_after_forward.h"

#include "absl/strings/str_cat.h"

namespace tessera {

void SetReshardAfterForward(bool reshard, JobConfig* config) {
  config->strategy = reshard ? Strategy::kFullShard : Strategy::kShardGradOp;
  config->reshard_group_size = 0;
}

absl::Status SetReshardAfterForward(int group_size, JobConfig* config) {
  if (group_size < 1 || config->world_size % group_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "reshard_after_forward ", group_size, " does not divide world_size ", config->world_size));
  }
  SetReshardAfterForward(group_size > 1, config);
  if (group_size > 1 && group_size < config->world_size) config->reshard_group_size = group_size;
  return absl::OkStatus();
}

}  // namespace tessera

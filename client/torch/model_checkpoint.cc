#include "tessera/torch/model_checkpoint.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

absl::Status CheckIdle(ShardedModel* model, absl::string_view what) {
  if (model->in_step()) return absl::FailedPreconditionError(absl::StrCat(what, " within RunStep"));
  return model->CheckIdle(what);
}

}  // namespace

absl::Status SaveModelCheckpoint(ShardedModel* model, const std::string& path,
                                 const std::string& trainer_state, const SaveOptions& options) {
  RETURN_IF_ERROR(CheckIdle(model, "a checkpoint"));
  CheckpointContents contents;
  contents.trainer_state = trainer_state;
  return SaveCheckpoint(&model->session(), path, contents, options);
}

void OnModelSaveRequest(ShardedModel* model,
                        std::function<absl::StatusOr<std::string>(int64_t step)> trainer_state) {
  OnSaveRequest(&model->session(),
                [model, trainer_state = std::move(trainer_state)](
                    int64_t step) -> absl::StatusOr<CheckpointContents> {
                  // A requested save is made within the step, so being in one is no error here.
                  RETURN_IF_ERROR(model->CheckIdle("a checkpoint"));
                  CheckpointContents contents;
                  if (trainer_state != nullptr) {
                    ASSIGN_OR_RETURN(contents.trainer_state, trainer_state(step));
                  }
                  return contents;
                });
}

absl::StatusOr<LoadedCheckpoint> LoadModelCheckpoint(ShardedModel* model, const std::string& path,
                                                     const LoadModelCheckpointOptions& options) {
  RETURN_IF_ERROR(CheckIdle(model, "loading a checkpoint"));
  LoadCheckpointOptions wanted;
  wanted.strict = options.strict;
  wanted.model_only = options.model_only;
  wanted.optimizer_only = options.optimizer_only;
  wanted.names = options.names;
  return LoadCheckpoint(&model->session(), path, wanted);
}

}  // namespace tessera

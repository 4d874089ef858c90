#include "client/torch/model_checkpoint.h"

#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/model_buffers.h"
#include "client/torch/state_sites.h"

namespace tessera {
namespace {

absl::StatusOr<StoredDType> DTypeOf(const std::string& name, const torch::Tensor& tensor) {
  const std::optional<StoredDType> dtype = StoredDTypeOf(tensor.scalar_type());
  if (dtype.has_value()) return *dtype;
  return absl::InvalidArgumentError(absl::StrCat("buffer '", name, "' is ",
                                                 torch::toString(tensor.scalar_type()),
                                                 ", which checkpoints do not have"));
}

// A bool of another byte than 0 and 1 is none that a program may look at.
absl::Status CheckBools(const NamedTensor& tensor) {
  if (tensor.dtype != StoredDType::kBool) return absl::OkStatus();
  for (const char value : tensor.values) {
    if (value == 0 || value == 1) continue;
    return absl::InvalidArgumentError(absl::StrCat("buffer '", tensor.name, "' has a bool of byte ",
                                                   static_cast<unsigned char>(value)));
  }
  return absl::OkStatus();
}

// Buffers and ignored parameters, by name in the model.
absl::StatusOr<std::map<std::string, torch::Tensor>> OwnTensors(ShardedModel* model) {
  ASSIGN_OR_RETURN(const std::vector<StateSite> sites, SitesOf(model, model->root()));
  std::map<std::string, torch::Tensor> own;
  for (const StateSite& site : sites) {
    if (site.unit < 0) own.emplace(site.name, site.tensor);
  }
  return own;
}

absl::StatusOr<std::vector<NamedTensor>> Describe(
    const std::map<std::string, torch::Tensor>& tensors, bool with_values) {
  std::vector<NamedTensor> named;
  for (const auto& [name, tensor] : tensors) {
    NamedTensor& to = named.emplace_back();
    to.name = name;
    ASSIGN_OR_RETURN(to.dtype, DTypeOf(name, tensor));
    to.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
    if (!with_values) continue;
    const torch::Tensor plain = tensor.detach().cpu().contiguous();
    to.values.assign(static_cast<const char*>(plain.data_ptr()), plain.nbytes());
  }
  return named;
}

absl::Status CheckIdle(ShardedModel* model, absl::string_view what) {
  if (model->in_step()) return absl::FailedPreconditionError(absl::StrCat(what, " within RunStep"));
  return model->CheckIdle(what);
}

absl::StatusOr<std::vector<NamedTensor>> OwnBuffers(ShardedModel* model) {
  const ShardedModel::OriginalBuffers original(model);
  ASSIGN_OR_RETURN(const auto tensors, OwnTensors(model));
  return Describe(tensors, /*with_values=*/true);
}

}  // namespace

absl::Status SaveModelCheckpoint(ShardedModel* model, const std::string& path,
                                 const std::string& trainer_state,
                                 const SaveCheckpointOptions& options) {
  RETURN_IF_ERROR(CheckIdle(model, "a checkpoint"));
  CheckpointContents contents;
  contents.trainer_state = trainer_state;
  ASSIGN_OR_RETURN(contents.buffers, OwnBuffers(model));
  return SaveCheckpoint(&model->session(), path, contents, options);
}

void OnModelSaveRequest(ShardedModel* model,
                        std::function<absl::StatusOr<std::string>(int64_t step)> trainer_state) {
  OnSaveRequest(&model->session(),
                [model, trainer_state = std::move(trainer_state)](
                    int64_t step) -> absl::StatusOr<CheckpointContents> {
                  RETURN_IF_ERROR(model->CheckIdle("a checkpoint"));
                  CheckpointContents contents;
                  ASSIGN_OR_RETURN(contents.buffers, OwnBuffers(model));
                  if (trainer_state != nullptr) {
                    ASSIGN_OR_RETURN(contents.trainer_state, trainer_state(step));
                  }
                  return contents;
                });
}

absl::StatusOr<LoadedCheckpoint> LoadModelCheckpoint(ShardedModel* model, const std::string& path,
                                                     const LoadModelCheckpointOptions& options) {
  RETURN_IF_ERROR(CheckIdle(model, "loading a checkpoint"));
  const ShardedModel::OriginalBuffers original(model);
  ASSIGN_OR_RETURN(const auto tensors, OwnTensors(model));
  LoadCheckpointOptions wanted;
  wanted.strict = options.strict;
  wanted.model_only = options.model_only;
  wanted.optimizer_only = options.optimizer_only;
  wanted.names = options.names;
  if (!options.optimizer_only) {
    ASSIGN_OR_RETURN(wanted.buffers, Describe(tensors, /*with_values=*/false));
  }
  ASSIGN_OR_RETURN(LoadedCheckpoint loaded, LoadCheckpoint(&model->session(), path, wanted));
  for (const NamedTensor& from : loaded.buffers) RETURN_IF_ERROR(CheckBools(from));
  const torch::NoGradGuard no_grad;
  for (const NamedTensor& from : loaded.buffers) {
    torch::Tensor tensor = tensors.at(from.name);
    torch::Tensor values = torch::empty(tensor.sizes(), tensor.scalar_type());
    memcpy(values.data_ptr(), from.values.data(), from.values.size());
    tensor.copy_(values);
  }
  loaded.buffers.clear();
  return loaded;
}

}  // namespace tessera

#include "client/torch/trainer_tensors.h"

#include <ATen/MemoryOverlap.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/model_buffers.h"
#include "client/torch/state_sites.h"
#include "client/torch/torch_status.h"

namespace tessera {
namespace {

absl::StatusOr<StoredDType> DTypeOf(const std::string& name, const torch::Tensor& tensor) {
  const std::optional<StoredDType> dtype = StoredDTypeOf(tensor.scalar_type());
  if (dtype.has_value()) return *dtype;
  return absl::InvalidArgumentError(absl::StrCat("buffer '", name, "' is ",
                                                 torch::toString(tensor.scalar_type()),
                                                 ", which checkpoints do not have"));
}

// A program must not read a bool whose byte is neither 0 nor 1.
absl::Status CheckBools(const NamedTensor& tensor) {
  if (tensor.dtype != StoredDType::kBool) return absl::OkStatus();
  for (const char value : tensor.values) {
    if (value == 0 || value == 1) continue;
    return absl::InvalidArgumentError(absl::StrCat("buffer '", tensor.name, "' has a bool of byte ",
                                                   static_cast<unsigned char>(value)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, torch::Tensor>> OwnTensors(ShardedModel* model) {
  ASSIGN_OR_RETURN(const std::vector<StateSite> sites, SitesOf(model, model->root()));
  std::map<std::string, torch::Tensor> own;
  for (const StateSite& site : sites) {
    // Parameters of units are in the job's shards. Only the rest is the trainer's own.
    if (site.unit < 0) own.emplace(site.name, site.tensor);
  }
  return own;
}

absl::StatusOr<std::vector<NamedTensor>> Get(ShardedModel* model, TensorValues values) {
  RETURN_IF_ERROR(model->CheckIdle("a save or load"));
  // Saves have the buffers as they were declared.
  const ShardedModel::OriginalBuffers original(model);
  ASSIGN_OR_RETURN(const auto tensors, OwnTensors(model));
  std::vector<NamedTensor> named;
  for (const auto& [name, tensor] : tensors) {
    NamedTensor& to = named.emplace_back();
    to.name = name;
    ASSIGN_OR_RETURN(to.dtype, DTypeOf(name, tensor));
    to.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
    if (values == TensorValues::kOmitted) continue;
    // What is only marked as conjugated or negated is computed: files have plain values.
    const torch::Tensor plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
    to.values.assign(static_cast<const char*>(plain.data_ptr()), plain.nbytes());
  }
  return named;
}

absl::StatusOr<torch::ScalarType> ScalarTypeOf(const NamedTensor& tensor) {
  for (const auto type :
       {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf, torch::kLong, torch::kInt,
        torch::kShort, torch::kChar, torch::kByte, torch::kBool, torch::kComplexFloat}) {
    if (StoredDTypeOf(type) == tensor.dtype) return type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("buffer '", tensor.name, "' is ", Name(tensor.dtype), " in the file"));
}

absl::Status Take(ShardedModel* model, const std::vector<NamedTensor>& loaded) {
  // Before any tensor is changed.
  for (const NamedTensor& from : loaded) RETURN_IF_ERROR(CheckBools(from));
  const ShardedModel::OriginalBuffers original(model);
  ASSIGN_OR_RETURN(const auto tensors, OwnTensors(model));
  for (const NamedTensor& from : loaded) {
    const auto found = tensors.find(from.name);
    ASSIGN_OR_RETURN(const torch::ScalarType type, ScalarTypeOf(from));
    torch::Tensor values = torch::empty(from.shape, type);
    // The session asked for these shapes. What differs now was changed meanwhile.
    if (found == tensors.end() || values.nbytes() != from.values.size() ||
        values.sizes() != found->second.sizes()) {
      return absl::InternalError(absl::StrCat("'", from.name, "' was not asked for so"));
    }
    if (!from.values.empty()) memcpy(values.data_ptr(), from.values.data(), from.values.size());
    SetTensor(found->second, values);
  }
  return absl::OkStatus();
}

}  // namespace

TrainerTensors TrainerTensorsOf(ShardedModel* model) {
  TrainerTensors tensors;
  tensors.get = [model](TensorValues values) {
    return CatchTorch([&] { return Get(model, values); });
  };
  tensors.take = [model](const std::vector<NamedTensor>& loaded) {
    return CatchTorch([&] { return Take(model, loaded); });
  };
  return tensors;
}

void SetTensor(torch::Tensor target, const torch::Tensor& values) {
  const torch::NoGradGuard no_grad;
  // copy_ refuses an expanded target, so it gets memory of its own.
  if (at::has_internal_overlap(target) == at::MemOverlap::Yes)
    target.set_data(target.clone(torch::MemoryFormat::Contiguous));
  target.copy_(values);
}

}  // namespace tessera

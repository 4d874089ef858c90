#include "tessera/torch/shard_optimizer.h"

#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/precision_rules.h"
#include "client/torch/torch_status.h"

namespace tessera {
namespace {

torch::Tensor Flat(Values values) {
  const torch::ScalarType dtype = ScalarTypeOf(values.dtype());
  if (values.empty()) return torch::empty({0}, dtype);
  // Without a copy: the optimizer updates the shard in place.
  return torch::from_blob(values.data(), {static_cast<int64_t>(values.size())}, dtype);
}

}  // namespace

std::vector<torch::Tensor> TensorsOf(const std::vector<ShardTensor>& shards) {
  std::vector<torch::Tensor> tensors;
  for (const ShardTensor& shard : shards) tensors.push_back(shard.tensor);
  return tensors;
}

ShardOptimizer::ShardOptimizer(ShardedModel* model, std::unique_ptr<LocalShards> local)
    : model_(model), local_(std::move(local)) {
  for (size_t part = 0; part < local_->parts().size(); ++part) {
    const TensorSpec& spec = local_->spec(part);
    if (!spec.requires_grad) continue;
    parts_.push_back(part);
    shards_.push_back({spec.name, Flat(local_->values(part)).requires_grad_(),
                       local_->parts()[part].begin_elements});
  }
}

absl::StatusOr<std::unique_ptr<ShardOptimizer>> ShardOptimizer::Create(ShardedModel* model,
                                                                       const Factory& make) {
  ASSIGN_OR_RETURN(std::unique_ptr<LocalShards> local, LocalShards::Open(&model->session()));
  std::unique_ptr<ShardOptimizer> own(new ShardOptimizer(model, std::move(local)));
  RETURN_IF_ERROR(CatchTorch([&] {
    own->optimizer_ = make(own->shards_);
    return absl::OkStatus();
  }));
  if (own->optimizer_ == nullptr) return absl::InvalidArgumentError("no optimizer was created");
  return own;
}

absl::StatusOr<std::vector<std::string>> ShardOptimizer::ParameterNames() const {
  std::unordered_map<const c10::TensorImpl*, const ShardTensor*> shards;
  for (const ShardTensor& shard : shards_)
    // By identity: optimizers do not know names.
    shards.emplace(shard.tensor.unsafeGetTensorImpl(), &shard);
  std::vector<std::string> names;
  for (const auto& group : optimizer_->param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      const auto shard = shards.find(parameter.unsafeGetTensorImpl());
      if (shard == shards.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the optimizer's parameter ", names.size(),
                         " is not one of the shards that it was given"));
      }
      names.push_back(shard->second->name);
    }
  }
  return names;
}

void ShardOptimizer::UndoState() {
  // The step after the one that was kept: it was decided, and nothing is to be undone.
  if (kept_for_step_ != model_->next_step()) return;
  optimizer_->state().clear();
  std::istringstream in(kept_state_);
  torch::load(*optimizer_, in);
  kept_for_step_ = 0;
}

void ShardOptimizer::KeepState() {
  // A try before this one may have changed the state already.
  UndoState();
  std::ostringstream out;
  torch::save(*optimizer_, out);
  kept_state_ = out.str();
  kept_for_step_ = model_->next_step();
}

void ShardOptimizer::SetGradients() {
  for (size_t i = 0; i < shards_.size(); ++i) {
    // An undefined gradient is not a zero one (docs/adr/0012).
    shards_[i].tensor.mutable_grad() =
        local_->has_gradient(parts_[i]) ? Flat(local_->gradient(parts_[i])) : torch::Tensor();
  }
}

absl::StatusOr<StepResult> ShardOptimizer::Step(const StepOptions& options) {
  RETURN_IF_ERROR(model_->PrepareStep());
  ASSIGN_OR_RETURN(StepResult result, local_->Begin(options));
  if (result.skipped) return result;
  SetGradients();
  RETURN_IF_ERROR(CatchTorch([this] {
    // Before the optimizer changes anything.
    KeepState();
    optimizer_->step();
    return absl::OkStatus();
  }));
  // Decides the step. On an error the state is undone by the next try.
  RETURN_IF_ERROR(local_->Commit());
  result.step = model_->next_step() - 1;
  return result;
}

}  // namespace tessera

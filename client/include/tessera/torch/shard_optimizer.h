// Any torch::optim in the trainer, on this rank's part of each parameter.
//
//   auto own = *ShardOptimizer::Create(sharded.get(), [](const std::vector<ShardTensor>& shards) {
//     return std::make_unique<torch::optim::AdamW>(TensorsOf(shards), AdamWOptions(1e-3));
//   });
//   sharded->RunStep([&] { loss().backward(); return own->Step().status(); });
//
// Instead of sharded->Step(), and with the same guarantees for the parameters: set on all ranks or
// on none. The optimizer's own state is the trainer's. Step copies it first (by its save()), and
// goes back to the copy where the step before it was undone, so that RunStep repeats it exactly; a
// trainer that replaces a killed one starts without it, unless the user saves it: in checkpoints as
// model_checkpoint.h does, or as optim_state_dicts.h gives it.
//
// What the optimizer does must be element by element: a tensor here is flat, a part of a parameter
// (local_shards.h). Confined to the thread that trains; the model outlives this.
#ifndef TESSERA_TORCH_SHARD_OPTIMIZER_H_
#define TESSERA_TORCH_SHARD_OPTIMIZER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tessera/local_shards.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded_model.h"

namespace tessera {

// This rank's part of a parameter that takes gradients: elements from begin_elements on, in order.
struct ShardTensor {
  std::string name;
  torch::Tensor tensor;  // 1-D, fp32 or fp64; empty if this rank has no part.
  int64_t begin_elements = 0;
};

std::vector<torch::Tensor> TensorsOf(const std::vector<ShardTensor>& shards);

class ShardOptimizer {
 public:
  // Called once. The tensors keep their memory.
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(
      const std::vector<ShardTensor>& shards)>;
  // Errors: as LocalShards::Open; Unknown  `make` threw.
  static absl::StatusOr<std::unique_ptr<ShardOptimizer>> Create(ShardedModel* model,
                                                                const Factory& make);

  // Takes a step, collectively. Each tensor's grad() is the reduced gradient, divided and clipped;
  // undefined where no rank gave the parameter one.
  // Errors: as LocalShards::Begin and Commit; Unknown  the optimizer threw.
  absl::StatusOr<StepResult> Step(const StepOptions& options = StepOptions());

  // If the last step was undone, the optimizer's state becomes what it was before it; the next Step
  // does the same by itself. For code that reads or sets the state between steps.
  void UndoState();

  const std::vector<ShardTensor>& shards() const { return shards_; }
  // Of the optimizer's parameters, group by group. Errors: InvalidArgument  one is none of
  // shards().
  absl::StatusOr<std::vector<std::string>> ParameterNames() const;
  torch::optim::Optimizer& optimizer() { return *optimizer_; }  // To change its options.

 private:
  ShardOptimizer(ShardedModel* model, std::unique_ptr<LocalShards> local);
  // Puts the optimizer's state back if this step was tried before, and keeps a copy of it.
  void KeepState();
  void SetGradients();

  ShardedModel* const model_;
  const std::unique_ptr<LocalShards> local_;
  std::vector<size_t> parts_;  // By shard: of local_.
  std::vector<ShardTensor> shards_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::string kept_state_;
  int64_t kept_for_step_ = 0;  // 0: none is kept.
};

}  // namespace tessera

#endif  // TESSERA_TORCH_SHARD_OPTIMIZER_H_

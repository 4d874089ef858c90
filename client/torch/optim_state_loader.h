// One reading of an optimizer's state dict: this rank's part of the job's moments, and how often
// each parameter was updated. For OptimStateDicts. Collective. One use, one thread.
#ifndef TESSERA_CLIENT_TORCH_OPTIM_STATE_LOADER_H_
#define TESSERA_CLIENT_TORCH_OPTIM_STATE_LOADER_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/state_exchange.h"
#include "job/job_memory.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/optim_state_dicts.h"
#include "tessera/torch/sharded_model.h"
#include "tessera/torch/state_dicts.h"

namespace tessera {

// As PyTorch calls the array: "exp_avg", "exp_avg_sq", "momentum_buffer".
const char* MomentName(OptimizerKind optimizer, StateArray array);

// The step of all the unit's trainable parameters, of which `step` says each one's; -1: none has
// state. Errors: FailedPrecondition  they differ, both named.
absl::StatusOr<int64_t> StepOfUnit(const Session& session, int unit,
                                   const std::function<int64_t(int p)>& step);

class OptimStateLoader {
 public:
  // `dict` is not owned.
  OptimStateLoader(ShardedModel* model, StateDictType type, const LoadStateOptions& options,
                   const OptimStateDict* dict);

  // Errors: as OptimStateDicts::Load.
  absl::Status Read();

  // What the dictionary says, after Read. -1: the parameter has no state.
  int64_t step(int unit, int p) const { return plan_[first_[unit] + p]; }
  // Of each slice of this rank's shard of the unit, in the full dtype; zeroes where none is given.
  const std::vector<torch::Tensor>& values(StateArray array, int unit) const {
    return values_.at({array, unit});
  }
  std::optional<int64_t> last_step() const;
  const std::vector<HyperParameters>& groups() const { return groups_; }

 private:
  bool reads_dict() const { return !options_.from_rank0 || session_->rank() == 0; }
  const TensorSpec& SpecOf(int unit, int p) const {
    return session_->layout().units[unit].flat.parameters()[p].spec;
  }
  // The key of the parameter's state.
  std::string KeyOf(int unit, int p) const;
  absl::Status Plan();
  absl::Status PlanParameter(int unit, int p, const OptimParamState& state);
  absl::Status PlanGroups();
  absl::Status SharePlan();
  absl::Status Fill(StateArray array, int unit);
  absl::Status FillFlat(StateArray array, int unit);
  // Whether the parameter's state has this moment; SGD's may lack it.
  bool Has(int unit, int p, size_t array) const {
    return (plan_[num_parameters_ + first_[unit] + p] >> array & 1) != 0;
  }

  ShardedModel* const model_;
  Session* const session_;
  const StateDictType type_;
  const LoadStateOptions options_;
  const OptimStateDict* const dict_;
  const std::vector<StateArray> arrays_;
  StateExchange exchange_;
  std::vector<int> first_;  // By unit: its first parameter's number in the job.
  int num_parameters_ = 0;
  // By parameter of the job its step; then by parameter a bit for each moment; then the last step.
  std::vector<int64_t> plan_;
  std::map<std::pair<StateArray, int>, std::vector<torch::Tensor>> values_;
  std::vector<HyperParameters> groups_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_OPTIM_STATE_LOADER_H_

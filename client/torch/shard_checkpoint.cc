#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/collective_call.h"
#include "client/torch/optim_state_loader.h"
#include "client/torch/precision_rules.h"
#include "client/torch/state_exchange.h"
#include "client/torch/summon_full_params.h"
#include "client/torch/torch_status.h"
#include "tessera/optimizer_state.h"
#include "tessera/torch/model_checkpoint.h"
#include "tessera/torch/optim_state_dicts.h"

namespace tessera {
namespace {

// By name.
using Shards = std::map<std::string, const ShardTensor*>;

Shards ShardsOf(const ShardOptimizer& own) {
  Shards shards;
  for (const ShardTensor& shard : own.shards()) shards[shard.name] = &shard;
  return shards;
}

const TensorSpec& SpecOf(const Session& session, int unit, int parameter) {
  return session.layout().units[unit].flat.parameters()[parameter].spec;
}

// Calls `visit` with each parameter of the job, in the order of its numbers.
void ForEachParameter(const Session& session,
                      absl::FunctionRef<void(size_t number, const TensorSpec&)> visit) {
  size_t number = 0;
  for (const UnitLayout& unit : session.layout().units) {
    for (const PlacedParameter& parameter : unit.flat.parameters()) visit(number++, parameter.spec);
  }
}

// Whether the job has room for all that the optimizer remembers.
absl::Status CheckMoments(OptimizerKind optimizer, const OptimStateDict& dict) {
  const std::vector<StateArray> arrays = MomentsOf(optimizer);
  for (const auto& item : dict.state) {
    for (const auto& [moment, entry] : item.value().moments) {
      bool has = false;
      for (const StateArray array : arrays) has |= moment == MomentName(optimizer, array);
      if (has) continue;
      return absl::InvalidArgumentError(absl::StrCat("optimizer state, '", item.key(),
                                                     "': the job, by its config.optimizer, has ",
                                                     "no '", moment, "'"));
    }
  }
  return absl::OkStatus();
}

// What the ranks' optimizers must have alike.
std::string TextOf(const OptimStateDict& dict) {
  std::string text;
  for (const auto& item : dict.state)
    absl::StrAppend(&text, item.key(), ",", item.value().step, ";");
  return text;
}

torch::Tensor TensorOf(const void* data, size_t count, DType dtype) {
  return torch::from_blob(const_cast<void*>(data), {static_cast<int64_t>(count)},
                          ScalarTypeOf(dtype));
}

absl::Status Store(Session* session, ShardOptimizer* own) {
  StateExchange exchange(session);
  const OptimizerKind optimizer = session->config().optimizer;
  const auto names = own->ParameterNames();
  const absl::StatusOr<OptimStateDict> dict =
      names.ok() ? OptimStateOf(own->optimizer(), *names) : names.status();
  absl::Status possible = dict.status();
  if (possible.ok()) possible = CheckMoments(optimizer, *dict);
  // Agreed before anything is written: one rank's error must be every rank's.
  RETURN_IF_ERROR(exchange.AgreeOn(possible));
  // The same parameters everywhere: the collective writes are made for each of them.
  RETURN_IF_ERROR(
      exchange.CheckAlike(TextOf(*dict), "have optimizers with state of different parameters"));
  ASSIGN_OR_RETURN(TrainingProgress progress, ReadProgress(session));
  ForEachParameter(*session, [&](size_t number, const TensorSpec& spec) {
    const OptimParamState* state = dict->state.find(spec.name);
    progress.update_counts[number] = state == nullptr ? 0 : state->step;
    // SGD counts nothing, but a parameter with momentum was updated.
    if (state != nullptr && optimizer == OptimizerKind::kSgd)
      progress.update_counts[number] = std::max<int64_t>(1, progress.step);
  });
  const Shards shards = ShardsOf(*own);
  const auto fill = [&](StateArray array, int unit, int parameter, Values values) {
    const std::string& name = SpecOf(*session, unit, parameter).name;
    const OptimParamState* state = dict->state.find(name);
    if (state == nullptr) return;
    const auto entry = state->moments.find(MomentName(optimizer, array));
    // This rank has no part of it.
    if (entry == state->moments.end() || entry->second.tensor.numel() == 0) return;
    const torch::Tensor& own_part = entry->second.tensor;
    TensorOf(values.data(), values.size(), values.dtype())
        .narrow(0, shards.at(name)->begin_elements, own_part.numel())
        .copy_(own_part);
  };
  return WriteOptimizerState(session, progress, fill);
}

absl::Status Take(Session* session, ShardOptimizer* own) {
  const OptimizerKind optimizer = session->config().optimizer;
  ASSIGN_OR_RETURN(const TrainingProgress progress, ReadProgress(session));
  const Shards shards = ShardsOf(*own);
  OptimStateDict dict;
  // The optimizer has only shards of trainable parameters.
  ForEachParameter(*session, [&](size_t number, const TensorSpec& spec) {
    if (shards.count(spec.name) == 0 || progress.update_counts[number] == 0) return;
    dict.state.insert(spec.name, {{}, progress.update_counts[number]});
  });
  for (const StateArray array : MomentsOf(optimizer)) {
    for (int unit = 0; unit < session->num_units(); ++unit) {
      RETURN_IF_ERROR(ReadMoments(session, unit, array, [&](int parameter, ConstValues values) {
        const std::string& name = SpecOf(*session, unit, parameter).name;
        OptimParamState* state = dict.state.find(name);
        if (state == nullptr) return;
        const ShardTensor& shard = *shards.at(name);
        const ConstValues part = values.Part(shard.begin_elements, shard.tensor.numel());
        state->moments[MomentName(optimizer, array)] =
            StateEntry::Whole(TensorOf(part.data(), part.size(), part.dtype()).clone());
      }));
    }
  }
  const auto names = own->ParameterNames();
  absl::Status possible = names.status();
  // Checked on all ranks before any rank changes its optimizer.
  if (possible.ok()) possible = CheckOptimState(dict, *names, own->optimizer());
  RETURN_IF_ERROR(StateExchange(session).AgreeOn(possible));
  return SetOptimState(dict, *names, &own->optimizer());
}

absl::Status CheckIdle(ShardedModel* model, const char* what) {
  RETURN_IF_ERROR(model->CheckIdle(what));
  if (!model->session().within_step()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(what, ": not possible within a step"));
}

}  // namespace

absl::Status StoreOptimState(ShardedModel* model, ShardOptimizer* own) {
  RETURN_IF_ERROR(CheckIdle(model, "storing an optimizer's state"));
  // What a step that was undone left in the optimizer must not be stored.
  own->UndoState();
  return RunCollective(model, [&] { return Store(&model->session(), own); });
}

absl::Status TakeOptimState(ShardedModel* model, ShardOptimizer* own) {
  RETURN_IF_ERROR(CheckIdle(model, "taking an optimizer's state"));
  if (model->in_step())
    return absl::FailedPreconditionError("taking an optimizer's state: not possible within a step");
  own->UndoState();
  return RunCollective(model, [&] { return Take(&model->session(), own); });
}

absl::Status SaveModelCheckpoint(ShardedModel* model, ShardOptimizer* own, const std::string& path,
                                 const std::string& trainer_state, const SaveOptions& options) {
  if (model->in_step()) return absl::FailedPreconditionError("a checkpoint within RunStep");
  RETURN_IF_ERROR(StoreOptimState(model, own));
  return SaveModelCheckpoint(model, path, trainer_state, options);
}

absl::StatusOr<LoadedCheckpoint> LoadModelCheckpoint(ShardedModel* model, ShardOptimizer* own,
                                                     const std::string& path,
                                                     const LoadModelCheckpointOptions& options) {
  ASSIGN_OR_RETURN(LoadedCheckpoint loaded, LoadModelCheckpoint(model, path, options));
  // After the load, which has put the moments into the job.
  if (!options.model_only) RETURN_IF_ERROR(TakeOptimState(model, own));
  return loaded;
}

void OnModelSaveRequest(ShardedModel* model, ShardOptimizer* own,
                        std::function<absl::StatusOr<std::string>(int64_t step)> trainer_state) {
  OnModelSaveRequest(model,
                     [model, own, trainer_state = std::move(trainer_state)](
                         int64_t step) -> absl::StatusOr<std::string> {
                       // Once: a trainer that is replaced now knows of no request.
                       RETURN_IF_ERROR(CatchTorch([&] { return Store(&model->session(), own); }));
                       return trainer_state == nullptr ? std::string() : trainer_state(step);
                     });
}

}  // namespace tessera

// OptimStateDicts: from a dictionary.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/collective_call.h"
#include "client/torch/optim_state_loader.h"
#include "client/torch/state_parts.h"
#include "client/torch/state_sites.h"
#include "client/torch/summon_full_params.h"
#include "client/torch/torch_status.h"
#include "job/param_groups.h"
#include "tessera/optimizer_state.h"
#include "tessera/torch/optim_state_dicts.h"

namespace tessera {
namespace {

absl::Status CheckSource(StateDictType type, const LoadStateOptions& options) {
  if (!options.from_rank0 || type == StateDictType::kFull) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("only a FULL_STATE_DICT can be loaded from rank 0, not a ", Name(type)));
}

// This rank's part of the unit, as LOCAL has it.
StateEntry FlatEntry(const Session& session, int unit, const std::vector<torch::Tensor>& values) {
  const ExpectedEntry expected = ExpectedOf(session, unit, 0, StateDictType::kLocal);
  StateEntry entry;
  entry.tensor = values.empty() ? torch::empty({0}) : torch::cat(values);
  entry.kind = StateEntry::Kind::kFlat;
  entry.shape = expected.shape;
  entry.begin = expected.part.begin;
  return entry;
}

absl::Status Write(Session* session, const OptimStateLoader& loader) {
  ASSIGN_OR_RETURN(TrainingProgress progress, ReadProgress(session));
  size_t i = 0;
  for (int unit = 0; unit < session->num_units(); ++unit) {
    const size_t size = session->layout().units[unit].flat.parameters().size();
    for (size_t p = 0; p < size; ++p)
      // -1 is a parameter without state: it was never updated.
      progress.update_counts[i++] = std::max<int64_t>(loader.step(unit, p), 0);
  }
  progress.step = loader.last_step().value_or(progress.step);
  return WriteOptimizerState(session, progress,
                             [&](StateArray array, int unit, int p, Values values) {
                               const ShardView view = ViewOf(*session, unit);
                               for (size_t s = 0; s < view.slices().size(); ++s) {
                                 const ParameterSlice& slice = view.slices()[s];
                                 // Only what this rank holds: each rank writes its own part.
                                 if (slice.parameter_index != p) continue;
                                 char* at = static_cast<char*>(values.data()) +
                                            slice.in_parameter.begin * SizeBytes(values.dtype());
                                 CopyValues(loader.values(array, unit)[s],
                                            Values(at, slice.in_parameter.size(), values.dtype()));
                               }
                             });
}

}  // namespace

absl::StatusOr<OptimStateDict> OptimStateDicts::ToLoad(const OptimStateDict& dict,
                                                       const LoadStateOptions& options) {
  RETURN_IF_ERROR(CheckUse("optimizer state dict", /*loads=*/true));
  ASSIGN_OR_RETURN(const StateDictSettings settings, types_->Get(model_->root()));
  RETURN_IF_ERROR(CheckSource(settings.type, options));
  Session& session = model_->session();
  OptimStateLoader loader(model_, settings.type, options, &dict);
  RETURN_IF_ERROR(RunCollective(model_, [&] { return loader.Read(); }));
  OptimStateDict flat;
  for (int unit = 0; unit < session.num_units(); ++unit) {
    ASSIGN_OR_RETURN(const int64_t step,
                     StepOfUnit(session, unit, [&](int p) { return loader.step(unit, p); }));
    // No trained parameter of the unit, or none with state.
    if (step < 0) continue;
    OptimParamState state;
    state.step = step;
    for (const StateArray array : MomentsOf(session.config().optimizer))
      state.moments[MomentName(session.config().optimizer, array)] =
          FlatEntry(session, unit, loader.values(array, unit));
    flat.state.insert(FlatKeyOf(*model_, unit, ""), std::move(state));
  }
  flat.last_step = loader.last_step();
  for (const HyperParameters& numbers : loader.groups())
    flat.groups.push_back({numbers, {}, FormulaOf(session.config().optimizer)});
  const ParamGroups group_of(session.config());
  for (const std::string& name : names()) {
    if (flat.groups.empty()) break;
    flat.groups[group_of[name]].params.push_back(name);
  }
  return flat;
}

absl::StatusOr<std::vector<HyperParameters>> OptimStateDicts::Load(
    const OptimStateDict& dict, const LoadStateOptions& options) {
  RETURN_IF_ERROR(CheckUse("loading an optimizer state dict", /*loads=*/true));
  ASSIGN_OR_RETURN(const StateDictSettings settings, types_->Get(model_->root()));
  RETURN_IF_ERROR(CheckSource(settings.type, options));
  Session& session = model_->session();
  OptimStateLoader loader(model_, settings.type, options, &dict);
  RETURN_IF_ERROR(RunCollective(model_, [&]() -> absl::Status {
    RETURN_IF_ERROR(loader.Read());
    return Write(&session, loader);
  }));
  return loader.groups();
}

}  // namespace tessera

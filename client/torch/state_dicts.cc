#include "tessera/torch/state_dicts.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/collective_call.h"
#include "client/torch/precision_rules.h"
#include "client/torch/state_dict_loader.h"
#include "client/torch/state_parts.h"
#include "client/torch/summon_full_params.h"
#include "client/torch/torch_status.h"
#include "client/torch/unit_lookup.h"

namespace tessera {
namespace {

torch::Tensor PlainState(const torch::Tensor& tensor, bool offload_to_cpu) {
  const torch::Tensor state = tensor.detach();
  return offload_to_cpu && !state.is_meta() ? state.cpu() : state;
}

}  // namespace

absl::Status StateDicts::CheckLocal(const torch::nn::Module& module,
                                    const std::vector<StateSite>& sites) const {
  const std::vector<int> units = UnitsBelow(model_->units(), module, /*recurse=*/true);
  const std::set<int> below(units.begin(), units.end());
  for (const StateSite& site : sites) {
    if (site.unit < 0) continue;
    const UnitLayout& layout = model_->session().layout().units[site.unit];
    if (ShardsNothing(layout)) {
      return absl::InvalidArgumentError(
          absl::StrCat("LOCAL_STATE_DICT is only of units that are sharded: unit '",
                       layout.flat.unit_name(), "' is whole on every rank"));
    }
    if (below.count(site.unit) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("LOCAL_STATE_DICT: '", site.name,
                                                     "' is in unit '", layout.flat.unit_name(),
                                                     "', which is not at or below the module"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StateEntry>> StateDicts::ReadUnit(int unit,
                                                             const StateDictSettings& settings) {
  Session& session = model_->session();
  const std::vector<PlacedParameter>& placed = session.layout().units[unit].flat.parameters();
  const bool local = settings.type == StateDictType::kLocal;
  const bool has_copy = !settings.model_rank0_only() || session.rank() == 0;
  std::vector<torch::Tensor> wholes;  // Of LOCAL; else each is cut as it comes.
  std::vector<StateEntry> entries;
  RETURN_IF_ERROR(session.ReadParameters(unit, [&](int p, ConstValues values) {
    // It still reads: reading is collective.
    if (!has_copy) return;
    const TensorSpec& spec = placed[p].spec;
    torch::Tensor whole = TensorOf(values, spec.shape);
    // A flat part is cut from all parameters at once.
    if (local) return wholes.push_back(whole);
    whole = whole.to(ScalarTypeOf(spec.dtype));
    entries.push_back(PartOf(session, unit, whole, settings.type));
  }));
  if (local) entries.push_back(FlatPartOf(session, unit, wholes));
  return entries;
}

absl::StatusOr<StateDict> StateDicts::TryGet(const torch::nn::Module& module,
                                             const std::vector<StateSite>& sites,
                                             const StateDictSettings& settings) {
  const bool local = settings.type == StateDictType::kLocal;
  ASSIGN_OR_RETURN(const std::string prefix, PrefixOf(*model_, module));
  std::map<int, std::vector<StateEntry>> units;
  // In the order of the units, which is the same on all ranks, because reading is collective.
  for (const int unit : UnitsOfSites(sites)) {
    ASSIGN_OR_RETURN(units[unit], ReadUnit(unit, settings));
  }
  StateDict dict;
  // After the reads, which all ranks make.
  if (settings.model_rank0_only() && model_->session().rank() != 0) return dict;
  std::set<int> seen;
  for (const StateSite& site : sites) {
    if (site.unit < 0) {
      dict.insert(site.name,
                  StateEntry::Whole(PlainState(site.tensor, settings.model_offload_to_cpu())));
    } else if (!local) {
      dict.insert(site.name, units[site.unit][site.parameter]);
    } else if (seen.insert(site.unit).second) {
      const std::string key = FlatKeyOf(*model_, site.unit, prefix);
      if (dict.contains(key))
        return absl::InvalidArgumentError(absl::StrCat("two states are called '", key, "'"));
      dict.insert(key, units[site.unit][0]);
    }
  }
  return dict;
}

absl::StatusOr<StateDict> StateDicts::Get(const torch::nn::Module& module) {
  RETURN_IF_ERROR(model_->CheckIdle("state dict"));
  ASSIGN_OR_RETURN(const StateDictSettings settings, types_.Get(module));
  // Before the sites are listed: they refer to the buffers as they were declared.
  const ShardedModel::OriginalBuffers original(model_);
  ASSIGN_OR_RETURN(const std::vector<StateSite> sites, SitesOf(model_, module));
  if (settings.type == StateDictType::kLocal) RETURN_IF_ERROR(CheckLocal(module, sites));
  StateDict dict;
  RETURN_IF_ERROR(RunCollective(model_, [&]() -> absl::Status {
    ASSIGN_OR_RETURN(dict, TryGet(module, sites, settings));
    return absl::OkStatus();
  }));
  return dict;
}

absl::StatusOr<LoadStateReport> StateDicts::Load(const torch::nn::Module& module,
                                                 const StateDict& dict,
                                                 const LoadStateOptions& options) {
  RETURN_IF_ERROR(model_->CheckIdle("loading a state dict"));
  Session& session = model_->session();
  if (model_->in_step() || session.within_step()) {
    return absl::FailedPreconditionError(
        "loading a state dict: not possible within a step, which could not undo it");
  }
  ASSIGN_OR_RETURN(const StateDictSettings settings, types_.Get(module));
  if (options.from_rank0 && settings.type != StateDictType::kFull) {
    return absl::InvalidArgumentError(absl::StrCat(
        "only a FULL_STATE_DICT can be loaded from rank 0, not a ", Name(settings.type)));
  }
  const ShardedModel::OriginalBuffers original(model_);
  ASSIGN_OR_RETURN(std::vector<StateSite> sites, SitesOf(model_, module));
  if (settings.type == StateDictType::kLocal) RETURN_IF_ERROR(CheckLocal(module, sites));
  ASSIGN_OR_RETURN(const std::string prefix, PrefixOf(*model_, module));
  StateDictLoader loader(model_, std::move(sites), prefix, settings.type, options);
  // What libtorch throws of the user's tensors becomes a status.
  return CatchTorch([&] { return loader.Load(dict); });
}

}  // namespace tessera

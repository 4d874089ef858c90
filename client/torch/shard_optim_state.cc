#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/collective_call.h"
#include "client/torch/state_entry_check.h"
#include "client/torch/state_exchange.h"
#include "client/torch/torch_status.h"
#include "layout/shard_view.h"
#include "tessera/torch/optim_state_dicts.h"

namespace tessera {
namespace {

// Of a parameter: its shape, and which elements each of the ranks that shard its unit has.
struct Parts {
  std::vector<int64_t> shape;
  std::vector<ElementRange> ranges;
};

absl::StatusOr<Parts> PartsOf(const Session& session, const std::string& name) {
  for (const UnitLayout& unit : session.layout().units) {
    const std::vector<PlacedParameter>& placed = unit.flat.parameters();
    for (size_t p = 0; p < placed.size(); ++p) {
      if (placed[p].spec.name != name) continue;
      Parts parts = {placed[p].spec.shape, {}};
      for (int64_t chunk = 0; chunk < unit.shards.num_shards(); ++chunk) {
        const ElementRange slice = unit.shards.RangeOf(Rank(chunk));
        const int64_t offset = placed[p].offset_elements;
        const ElementRange range = Intersect(slice, {offset, offset + placed[p].numel});
        parts.ranges.push_back(range.empty()
                                   ? ElementRange{0, 0}
                                   : ElementRange{range.begin - offset, range.end - offset});
      }
      return parts;
    }
  }
  return absl::InternalError(absl::StrCat("'", name, "' is not a parameter of the job"));
}

absl::Status CheckBetweenSteps(ShardedModel* model, const char* what) {
  RETURN_IF_ERROR(model->CheckIdle(what));
  if (!model->in_step() && !model->session().within_step()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(what, ": not possible within a step"));
}

// What the optimizers must have alike.
std::string TextOf(const OptimStateDict& dict) {
  std::string text;
  // In a fixed order: gathering is collective, tensor by tensor.
  for (const auto& item : dict.state) {
    absl::StrAppend(&text, item.key(), ",", item.value().step);
    // The size of what is gathered depends on the dtype.
    for (const auto& [moment, entry] : item.value().moments)
      absl::StrAppend(&text, ",", moment, " ", c10::toString(entry.tensor.scalar_type()));
    absl::StrAppend(&text, ";");
  }
  return text;
}

// From this rank's parts, which become whole.
absl::Status Gather(const Session& session, StateExchange* exchange, OptimStateDict* dict) {
  for (auto& item : dict->state) {
    ASSIGN_OR_RETURN(const Parts parts, PartsOf(session, item.key()));
    for (auto& [moment, entry] : item.value().moments) {
      ASSIGN_OR_RETURN(
          const torch::Tensor whole,
          exchange->GatherParts(entry.tensor, parts.ranges, entry.tensor.scalar_type()));
      entry = StateEntry::Whole(whole.reshape(parts.shape));
    }
  }
  return absl::OkStatus();
}

// This rank's parts of it.
absl::StatusOr<OptimStateDict> Cut(const Session& session, const OptimStateDict& dict,
                                   const ShardOptimizer& own) {
  OptimStateDict cut;
  cut.groups = dict.groups;
  for (const auto& item : dict.state) {
    const ShardTensor* shard = nullptr;
    for (const ShardTensor& each : own.shards()) shard = each.name == item.key() ? &each : shard;
    if (shard == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("optimizer state: '", item.key(), "' is not a parameter of the optimizer"));
    }
    ASSIGN_OR_RETURN(const Parts parts, PartsOf(session, item.key()));
    OptimParamState state = item.value();
    for (auto& [moment, entry] : state.moments) {
      RETURN_IF_ERROR(CheckStateEntry(absl::StrCat(item.key(), "', '", moment), entry,
                                      {StateEntry::Kind::kWhole, parts.shape, ElementRange()}));
      const int64_t begin = shard->begin_elements;
      entry = StateEntry::Whole(FlatPart(entry.tensor, {begin, begin + shard->tensor.numel()},
                                         shard->tensor.scalar_type()));
    }
    cut.state.insert(item.key(), std::move(state));
  }
  return cut;
}

}  // namespace

absl::StatusOr<OptimStateDict> GatherOptimState(ShardedModel* model, ShardOptimizer* own) {
  RETURN_IF_ERROR(CheckBetweenSteps(model, "optimizer state dict"));
  own->UndoState();
  Session& session = model->session();
  OptimStateDict dict;
  RETURN_IF_ERROR(RunCollective(model, [&]() -> absl::Status {
    StateExchange exchange(&session);
    const auto names = own->ParameterNames();
    absl::StatusOr<OptimStateDict> local =
        names.ok() ? OptimStateOf(own->optimizer(), *names) : names.status();
    // All ranks exchange tensors next, so none may return by itself.
    RETURN_IF_ERROR(exchange.AgreeOn(local.status()));
    RETURN_IF_ERROR(
        exchange.CheckAlike(TextOf(*local), "have optimizers with state of different parameters"));
    RETURN_IF_ERROR(Gather(session, &exchange, &*local));
    dict = *std::move(local);
    return absl::OkStatus();
  }));
  return dict;
}

absl::Status SetShardOptimState(const OptimStateDict& dict, ShardedModel* model,
                                ShardOptimizer* own) {
  RETURN_IF_ERROR(CheckBetweenSteps(model, "loading an optimizer state dict"));
  own->UndoState();
  Session& session = model->session();
  const auto names = own->ParameterNames();
  const absl::StatusOr<OptimStateDict> cut = CatchTorch([&] { return Cut(session, dict, *own); });
  absl::Status possible = names.status();
  if (possible.ok()) possible = cut.status();
  if (possible.ok()) possible = CheckOptimState(*cut, *names, own->optimizer());
  // Ranks that failed and ranks that did not must not part here.
  RETURN_IF_ERROR(RunCollective(model, [&] { return StateExchange(&session).AgreeOn(possible); }));
  return SetOptimState(*cut, *names, &own->optimizer());
}

}  // namespace tessera

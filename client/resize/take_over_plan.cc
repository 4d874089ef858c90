#include "client/resize/take_over_plan.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

struct Parameter {
  const UnitLayout* unit = nullptr;
  const PlacedParameter* placed = nullptr;
  std::vector<std::string> names;  // Its own first, then those of tied weights.
};

std::vector<Parameter> ParametersOf(const ModelLayout& layout) {
  std::vector<Parameter> parameters;
  for (const UnitLayout& unit : layout.units) {
    std::map<std::string, std::vector<std::string>> aliases;
    for (const Alias& alias : unit.flat.aliases()) aliases[alias.primary].push_back(alias.name);
    for (const PlacedParameter& placed : unit.flat.parameters()) {
      Parameter parameter = {&unit, &placed, {placed.spec.name}};
      for (std::string& name : aliases[placed.spec.name])
        parameter.names.push_back(std::move(name));
      parameters.push_back(std::move(parameter));
    }
  }
  return parameters;
}

absl::Status CheckSame(const Parameter& old, const Parameter& own) {
  const std::string& name = own.placed->spec.name;
  const auto& shape = own.placed->spec.shape;
  const auto& old_shape = old.placed->spec.shape;
  if (shape != old_shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", name, "' is [", absl::StrJoin(old_shape, ", "),
        "] in the job that is taken over, and [", absl::StrJoin(shape, ", "), "] in this one"));
  }
  const DType dtype = own.unit->full_dtype(), old_dtype = old.unit->full_dtype();
  if (dtype == old_dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("parameter '", name, "' is kept in ", Name(old_dtype),
                   " by the job that is taken over, and in ", Name(dtype), " by this one"));
}

// By own parameter: the number of the old one.
absl::StatusOr<std::vector<int>> Match(const std::vector<Parameter>& from,
                                       const std::vector<Parameter>& to) {
  std::map<std::string, int> by_name;
  for (size_t i = 0; i < from.size(); ++i) {
    // Under any of its names: ties may be declared the other way round.
    for (const std::string& name : from[i].names) by_name[name] = static_cast<int>(i);
  }
  std::vector<int> matched;
  std::vector<const Parameter*> taken(from.size(), nullptr);
  for (const Parameter& own : to) {
    int number = -1;
    for (const std::string& name : own.names) {
      const auto found = by_name.find(name);
      if (found == by_name.end() || found->second == number) continue;
      if (number >= 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", own.placed->spec.name, "' and '", name,
                         "' are tied here, and two parameters in the job that is taken over"));
      }
      number = found->second;
    }
    if (number < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the job that is taken over lacks parameter '", own.placed->spec.name, "'"));
    }
    if (taken[number] != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", taken[number]->placed->spec.name, "' and '", own.placed->spec.name,
                       "' are two parameters here, and tied in the job that is taken over"));
    }
    RETURN_IF_ERROR(CheckSame(from[number], own));
    taken[number] = &own;
    matched.push_back(number);
  }
  // A parameter that nobody takes would be lost silently.
  for (size_t i = 0; i < from.size(); ++i) {
    if (taken[i] != nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat("this job lacks parameter '",
                                                   from[i].placed->spec.name,
                                                   "' of the job that is taken over"));
  }
  return matched;
}

// State of the old job that this one does not have is left there.
absl::Status MatchBuffers(const ModelLayout& from, const ModelLayout& to, TakeOverPlan* plan) {
  std::map<std::string, int> by_name;
  for (size_t i = 0; i < from.buffers.size(); ++i) by_name[from.buffers[i].name] = i;
  for (size_t i = 0; i < to.buffers.size(); ++i) {
    const BufferSpec& own = to.buffers[i];
    const auto found = by_name.find(own.name);
    if (found == by_name.end()) {
      plan->missing_buffers.push_back(own.name);
      continue;
    }
    const BufferSpec& old = from.buffers[found->second];
    if (old.shape != own.shape || old.dtype != own.dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat("buffer '", own.name, "' is ", Name(old.dtype), " [",
                       absl::StrJoin(old.shape, ", "), "] in the job that is taken over, and ",
                       Name(own.dtype), " [", absl::StrJoin(own.shape, ", "), "] in this one"));
    }
    ASSIGN_OR_RETURN(const int64_t numel, Numel(own));
    plan->buffers.push_back({static_cast<int>(i), found->second, numel});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TakeOverPlan> PlanTakeOver(const JobShape& from, const JobShape& to, Rank rank) {
  // The moments of one optimizer are no state of another.
  if (from.optimizer != to.optimizer) {
    const auto name = [](OptimizerKind kind) {
      return kind == OptimizerKind::kSgd ? "sgd" : "adamw";
    };
    return absl::InvalidArgumentError(
        absl::StrCat("the optimizer of the job that is taken over is '", name(from.optimizer),
                     "', that of this one '", name(to.optimizer), "'"));
  }
  const std::vector<Parameter> old = ParametersOf(from.layout), own = ParametersOf(to.layout);
  TakeOverPlan plan;
  plan.num_old_parameters = static_cast<int>(old.size());
  ASSIGN_OR_RETURN(plan.old_parameters, Match(old, own));
  RETURN_IF_ERROR(MatchBuffers(from.layout, to.layout, &plan));
  std::vector<StateArray> arrays = {StateArray::kParameter};
  for (const StateArray moment : MomentsOf(to.optimizer)) arrays.push_back(moment);
  size_t first = 0;  // The unit's first parameter.
  for (size_t u = 0; u < to.layout.units.size(); ++u) {
    const UnitLayout& unit = to.layout.units[u];
    const ElementRange slice = unit.shards.RangeOf(rank);
    for (const StateArray array : arrays) {
      TakeOverSlice& taken = plan.slices.emplace_back();
      taken.unit = static_cast<int>(u);
      taken.array = array;
      for (size_t p = 0; p < unit.flat.parameters().size(); ++p) {
        const PlacedParameter& placed = unit.flat.parameters()[p];
        const int number = plan.old_parameters[first + p];
        // A parameter that was frozen has no moments.
        const bool is_trained = placed.spec.requires_grad && old[number].placed->spec.requires_grad;
        const ElementRange part =
            Intersect({placed.offset_elements, placed.offset_elements + placed.numel}, slice);
        if (part.empty() || (array != StateArray::kParameter && !is_trained)) continue;
        taken.ranges.push_back(
            {number, part.begin - placed.offset_elements, part.size(), part.begin - slice.begin});
      }
    }
    first += unit.flat.parameters().size();
  }
  return plan;
}

}  // namespace tessera

#include "shm/parameter_plan.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

constexpr int64_t kAlignmentBytes = 512;  // Of slices and units, for whole accesses of a GPU.
constexpr int64_t kMaxRegionBytes = int64_t{1} << 56;

bool HasOthersWithin(const ModelLayout& layout, int unit) {
  const std::string prefix = layout.units[unit].flat.unit_name() + ".";
  return std::any_of(layout.units.begin(), layout.units.end(), [&](const UnitLayout& other) {
    return absl::StartsWith(other.flat.unit_name(), prefix);
  });
}

int64_t SlotBytesOf(const UnitMemory& placed) {
  return std::max(placed.parameter_bytes, placed.full_bytes);
}

}  // namespace

bool GathersEachWindow(const ModelLayout& layout, const JobConfig& config, int fewest_ranks,
                       int unit) {
  // Ranks that keep a unit between them keep it on their worker, which shares it anyway.
  const int kept_by = config.reshard_group_size;
  const bool keeps = kept_by > 0 && kept_by <= fewest_ranks;
  return layout.units[unit].shards.num_shards() == config.world_size && !keeps &&
         ReshardsAfterForward(layout.units[unit].strategy);
}

ParameterPlan ParameterPlan::InPlaces(const JobMemory& memory) {
  ParameterPlan plan;
  for (const UnitMemory& unit : memory.units())
    plan.units_.push_back({-1, unit.parameter_offset_bytes, unit.full_offset_bytes, 0});
  plan.region_bytes_ = memory.parameter_region_bytes();
  return plan;
}

absl::StatusOr<ParameterPlan> ParameterPlan::InSlots(const ModelLayout& layout,
                                                     const JobConfig& config,
                                                     const JobMemory& memory) {
  std::vector<int> sharing;
  // Without the root, which stays gathered from forward to backward.
  for (size_t unit = 1; unit < layout.units.size(); ++unit) {
    // A unit within whose windows others open could lose its slot to them, so it has a place of its
    // own.
    if (GathersEachWindow(layout, config, /*fewest_ranks=*/1, unit) &&
        !HasOthersWithin(layout, unit))
      sharing.push_back(unit);
  }
  const int64_t wanted_slots = int64_t{config.max_gathered_units} + 2;
  // As many slots as units would save no memory.
  if (static_cast<int64_t>(sharing.size()) <= wanted_slots) return InPlaces(memory);
  const int num_slots = static_cast<int>(std::min<int64_t>(wanted_slots, kMaxSlots));
  ParameterPlan plan;
  plan.num_slots_ = num_slots;
  plan.units_.resize(layout.units.size());
  for (size_t i = 0; i < sharing.size(); ++i) {
    plan.units_[sharing[i]].slot = static_cast<int>(i) % num_slots;
    plan.slot_bytes_ = std::max(plan.slot_bytes_, SlotBytesOf(memory.units()[sharing[i]]));
  }
  for (size_t unit = 0; unit < layout.units.size(); ++unit)
    RETURN_IF_ERROR(plan.PlaceUnit(layout.units[unit], memory.units()[unit], &plan.units_[unit]));
  return plan;
}

absl::StatusOr<ParameterPlan> ParameterPlan::Of(const ModelLayout& layout, const JobConfig& config,
                                                const JobMemory& memory,
                                                const RankTopology& topology, bool on_gpu) {
  const bool one_each = topology.num_hosts() > 1 && topology.num_hosts() == topology.world_size();
  return on_gpu && one_each ? InSlots(layout, config, memory) : InPlaces(memory);
}

absl::Status ParameterPlan::PlaceUnit(const UnitLayout& unit, const UnitMemory& placed,
                                      Unit* planned) {
  const auto place = [this](int64_t size_bytes) {
    const int64_t offset = region_bytes_;
    region_bytes_ += (size_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    return offset;
  };
  if (planned->slot >= 0) {
    planned->own_offset_bytes = place(unit.shards.shard_numel() * SizeBytes(placed.compute_dtype));
  } else {
    planned->offset_bytes = planned->full_offset_bytes = place(placed.parameter_bytes);
    if (placed.compute_dtype != placed.full_dtype)
      planned->full_offset_bytes = place(placed.full_bytes);
  }
  if (region_bytes_ <= kMaxRegionBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("unit '", unit.flat.unit_name(), "': the job is too large"));
}

std::vector<UnitParameters> LocateParameters(const ParameterPlan& plan, const ModelLayout& layout,
                                             const JobMemory& memory, Rank rank, std::byte* region,
                                             const std::vector<std::byte*>& slots) {
  std::vector<UnitParameters> located;
  for (size_t unit = 0; unit < plan.units().size(); ++unit) {
    const ParameterPlan::Unit& planned = plan.units()[unit];
    UnitParameters& at = located.emplace_back();
    if (planned.slot >= 0) {
      at = {slots[unit], slots[unit], region + planned.own_offset_bytes};
      continue;
    }
    at.unsharded = region + planned.offset_bytes;
    at.full = region + planned.full_offset_bytes;
    at.own_slice = at.unsharded + layout.units[unit].shards.RangeOf(rank).begin *
                                      SizeBytes(memory.units()[unit].compute_dtype);
  }
  return located;
}

}  // namespace tessera

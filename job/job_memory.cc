#include "job/job_memory.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/page_bytes.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// No region may be larger; keeps every sum and product below far from overflow.
constexpr int64_t kMaxRegionBytes = int64_t{1} << 56;

absl::StatusOr<int64_t> PageAligned(int64_t elements, int64_t element_bytes,
                                    absl::string_view what) {
  // Written as a quotient, so that the product cannot overflow.
  if (elements > kMaxRegionBytes / element_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": a region of ", elements, " elements is too large"));
  }
  // One page at least: an empty mapping is an error.
  const int64_t bytes = std::max<int64_t>(elements * element_bytes, 1);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

std::vector<StateArray> MomentsOf(OptimizerKind optimizer) {
  if (optimizer == OptimizerKind::kSgd) return {StateArray::kFirstMoment};
  return {StateArray::kFirstMoment, StateArray::kSecondMoment};
}

absl::StatusOr<JobMemory> JobMemory::Create(const ModelLayout& layout, const JobConfig& config) {
  JobMemory memory;
  memory.num_moments_ = static_cast<int>(MomentsOf(config.optimizer).size());
  const int num_units = layout.units.size();
  const int shared_slots =
      config.gradient_slots == 0 ? num_units - 1 : std::min(config.gradient_slots, num_units - 1);
  memory.num_gradient_slots_ = 1 + shared_slots;
  for (int i = 0; i < num_units; ++i) {
    const UnitLayout& unit = layout.units[i];
    const std::string name = absl::StrCat("unit '", unit.flat.unit_name(), "'");
    UnitMemory& placed = memory.units_.emplace_back();
    placed.full_dtype = unit.full_dtype();
    placed.compute_dtype = unit.compute_dtype.value_or(config.compute_dtype);
    placed.reduce_dtype = unit.reduce_dtype.value_or(config.reduce_dtype);
    placed.parameter_offset_bytes = memory.parameter_region_bytes_;
    ASSIGN_OR_RETURN(placed.parameter_bytes, PageAligned(unit.shards.padded_numel(),
                                                         SizeBytes(placed.compute_dtype), name));
    memory.parameter_region_bytes_ += placed.parameter_bytes;
    placed.gradient_slot = i == 0 ? 0 : 1 + (i - 1) % shared_slots;
    placed.first_parameter = memory.num_parameters_;
    memory.num_parameters_ += unit.flat.parameters().size();
    memory.shard_numel_ += unit.shards.shard_numel();
    RETURN_IF_ERROR(memory.PlaceShard(unit.shards.shard_numel(), name, &placed));
    // Slots also stage initial values in full precision, so they are sized for that.
    ASSIGN_OR_RETURN(placed.full_bytes,
                     PageAligned(unit.shards.padded_numel(), SizeBytes(placed.full_dtype), name));
    memory.gradient_slot_bytes_ = std::max(memory.gradient_slot_bytes_, placed.full_bytes);
    // After each unit, so that the sum never comes near an overflow.
    if (memory.parameter_region_bytes_ > kMaxRegionBytes) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": the job is too large"));
    }
  }
  RETURN_IF_ERROR(memory.PlaceFullPrecision());
  ASSIGN_OR_RETURN(memory.buffers_, BufferPlacement::Of(layout.buffers));
  ASSIGN_OR_RETURN(memory.state_array_bytes_,
                   PageAligned(memory.state_array_bytes_, 1, "a rank's shards"));
  // Checked once here: offsets of slots are products of these two.
  if (memory.gradient_slot_bytes_ > kMaxRegionBytes / memory.num_gradient_slots_) {
    return absl::InvalidArgumentError("gradient slots: the job is too large");
  }
  return memory;
}

int64_t JobMemory::staged_buffers_offset_bytes() const {
  const int64_t end_bytes = touched_offset_bytes() + num_parameters_;
  return (end_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

HostMemory JobMemory::host_memory(bool parameters_on_host, bool state_on_host) const {
  constexpr int64_t kMost = int64_t{1} << 50;  // No host has it, and sums of many do not overflow.
  HostMemory memory;
  memory.rank_bytes = gradient_region_bytes();
  // Parameters and moments twice, and the reduced gradient.
  if (state_on_host) memory.rank_bytes += state_array_bytes_ * (3 + 2 * num_moments_);
  memory.rank_bytes = std::min(memory.rank_bytes, kMost);
  if (!parameters_on_host) return memory;
  for (const UnitMemory& unit : units_) memory.shared_bytes += unit.parameter_bytes;
  memory.shared_bytes = std::min(memory.shared_bytes, kMost);
  return memory;
}

absl::Status JobMemory::PlaceShard(int64_t numel, const std::string& name, UnitMemory* placed) {
  const int64_t element_bytes = SizeBytes(placed->full_dtype);
  // Rounded up to whole elements: units of fp32 and fp64 follow each other.
  placed->shard_offset_elements = (state_array_bytes_ + element_bytes - 1) / element_bytes;
  placed->shard_offset_bytes = placed->shard_offset_elements * element_bytes;
  if (numel > (kMaxRegionBytes - placed->shard_offset_bytes) / element_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": the job is too large"));
  }
  state_array_bytes_ = placed->shard_offset_bytes + numel * element_bytes;
  return absl::OkStatus();
}

absl::Status JobMemory::PlaceFullPrecision() {
  for (UnitMemory& unit : units_) {
    unit.full_offset_bytes = unit.parameter_offset_bytes;
    // What is computed with is the full precision already, so it needs no second place.
    if (unit.compute_dtype == unit.full_dtype) continue;
    unit.full_offset_bytes = parameter_region_bytes_;
    parameter_region_bytes_ += unit.full_bytes;
    if (parameter_region_bytes_ > kMaxRegionBytes) {
      return absl::InvalidArgumentError("parameters in full precision: the job is too large");
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera

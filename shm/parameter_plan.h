// Where the unsharded parameters of a rank's units are stored: each in a place of its own, or,
// where a GPU is a worker and has one rank, in slots that units share. Pure arithmetic; the same in
// the worker, its executors and its trainers.
//
//   in places   region | unit 0, all slices | unit 1, all slices | ... | in full precision ... |
//
//   in slots    region | unit 0, all slices | own slice of unit 1 | own slice of unit 2 | ...
//               slot 0 | unit 1 while it is gathered, or unit 4, or unit 7, ...
//               slot 1 | unit 2, or unit 5, ...       one piece of memory each, which every one of
//               slot 2 | unit 3, or unit 6, ...       its units has at an address of its own
//
// A unit is in a slot if each window on it gathers it again and no other unit is within it, by
// their names; the root is not. A slot holds a unit in its compute dtype or in full precision.
// There are as many slots as the executor may gather ahead, one for the unit in hand and one for
// that which is just being closed, up to kMaxSlots; where so many are asked for as there are units,
// they have places.
// Windows on two units of one slot cannot be open at once.
#ifndef TESSERA_SHM_PARAMETER_PLAN_H_
#define TESSERA_SHM_PARAMETER_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "job/job_config.h"
#include "job/job_memory.h"
#include "job/rank_topology.h"
#include "layout/model_layout.h"

namespace tessera {

// Whether each window on the unit brings what other workers hold, instead of each step. Of jobs on
// several workers, of which none has fewer than `fewest_ranks`.
bool GathersEachWindow(const ModelLayout& layout, const JobConfig& config, int fewest_ranks,
                       int unit);

class ParameterPlan {
 public:
  // More are not of use, and each is a descriptor.
  static constexpr int kMaxSlots = 32;

  // With places alone: those of `memory`.
  static ParameterPlan InPlaces(const JobMemory& memory);
  // Of jobs on several workers with one rank each. Errors: InvalidArgument  it would overflow.
  static absl::StatusOr<ParameterPlan> InSlots(const ModelLayout& layout, const JobConfig& config,
                                               const JobMemory& memory);
  // Slots if the job is such a one and its ranks here are on a GPU. Errors: as InSlots.
  static absl::StatusOr<ParameterPlan> Of(const ModelLayout& layout, const JobConfig& config,
                                          const JobMemory& memory, const RankTopology& topology,
                                          bool on_gpu);

  int num_slots() const { return num_slots_; }  // 0: none, and everything has its place.
  int64_t slot_bytes() const { return slot_bytes_; }
  int64_t region_bytes() const { return region_bytes_; }
  int64_t total_bytes() const { return region_bytes_ + num_slots_ * slot_bytes_; }
  int slot(int unit) const { return units_[unit].slot; }  // -1: it has a place.

  struct Unit {
    int slot = -1;
    // In the region, of a unit that has a place: as UnitMemory's.
    int64_t offset_bytes = 0;
    int64_t full_offset_bytes = 0;
    int64_t own_offset_bytes = 0;  // Of a unit in a slot: its rank's slice, in the compute dtype.
  };
  const std::vector<Unit>& units() const { return units_; }

 private:
  absl::Status PlaceUnit(const UnitLayout& unit, const UnitMemory& placed, Unit* planned);

  std::vector<Unit> units_;
  int num_slots_ = 0;
  int64_t slot_bytes_ = 0;
  int64_t region_bytes_ = 0;
};

// A unit's parameters in this process.
struct UnitParameters {
  std::byte* unsharded = nullptr;  // padded_numel elements of the compute dtype.
  std::byte* full = nullptr;       // The same in the full dtype; the same memory if that is it.
  // The slice that the rank publishes, in the compute dtype: in `unsharded`, unless that is a slot.
  std::byte* own_slice = nullptr;
};

// `slots`: by unit, the address at which it has its slot; null of units that have a place.
std::vector<UnitParameters> LocateParameters(const ParameterPlan& plan, const ModelLayout& layout,
                                             const JobMemory& memory, Rank rank, std::byte* region,
                                             const std::vector<std::byte*>& slots);

}  // namespace tessera

#endif  // TESSERA_SHM_PARAMETER_PLAN_H_

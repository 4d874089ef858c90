#include "worker/device/mapped_parameters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<MappedParameters> MappedParameters::Map(
    ParameterPlan plan, const ModelLayout& layout, const JobMemory& memory, Rank rank,
    RankDevice* device, const UniqueFd& region, absl::Span<const UniqueFd> slots, bool writable) {
  MappedParameters mapped;
  const auto map = [&](const UniqueFd& fd, int64_t size_bytes, absl::string_view what) {
    absl::StatusOr<Buffer> buffer = device->MapRegion(fd.get(), size_bytes, writable);
    if (!buffer.ok()) buffer = Annotate(buffer.status(), what);
    return buffer;
  };
  ASSIGN_OR_RETURN(mapped.region, map(region, plan.region_bytes(), "parameters"));
  std::vector<std::byte*> addresses;
  for (size_t unit = 0; unit < plan.units().size(); ++unit) {
    Buffer& slot = mapped.slots.emplace_back();
    // Without a slot the unit's parameters are in the region.
    if (plan.slot(unit) >= 0) {
      // Once for each of its units, at an address of its own: autograd holds views of a unit's
      // parameters from forward to backward.
      ASSIGN_OR_RETURN(slot, map(slots[plan.slot(unit)], plan.slot_bytes(),
                                 absl::StrCat("slot ", plan.slot(unit), " of parameters")));
    }
    addresses.push_back(slot.data_as<std::byte>());
  }
  mapped.units =
      LocateParameters(plan, layout, memory, rank, mapped.region.data_as<std::byte>(), addresses);
  mapped.plan = std::move(plan);
  return mapped;
}

}  // namespace tessera

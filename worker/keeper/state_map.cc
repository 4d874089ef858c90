#include "worker/keeper/state_map.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/job_codec.h"
#include "job/job_memory.h"
#include "job/live_tensors.h"
#include "shm/fd_passing.h"
#include "shm/shared_file.h"
#include "worker/engine/group_page.h"
#include "worker/executor/executor_memory.h"

namespace tessera {
namespace {

absl::StatusOr<std::vector<LiveTensor>> TensorsOf(const JobRegions& regions,
                                                  const MapRequest& request) {
  return LiveTensors(regions.layout(), regions.config().optimizer, request.parameters,
                     request.moments, request.buffers);
}

// Both words and numbers are in the group region.
void SetNumbers(const JobRegions& regions, const MapRequest& request, v1::LiveMapGiven* given) {
  GroupPage& page = *regions.group();
  // Offsets, since client and worker map the page at different addresses.
  const auto offset_of = [&page](const auto& word) {
    return reinterpret_cast<const char*>(&word) - reinterpret_cast<const char*>(&page);
  };
  for (int i = 0; i < regions.local().count(); ++i) {
    v1::LiveMapRank* rank = given->add_ranks();
    rank->set_applied_offset_bytes(offset_of(page.ranks[i].applied_step));
    rank->set_writing_offset_bytes(offset_of(page.ranks[i].hold.writing));
  }
  const int64_t counts_bytes =
      UpdateCounts::SizeBytes(regions.update_counts().num_parameters()) / 2;  // Of one version.
  for (const int version : {0, 1}) {
    v1::LiveMapNumbers* numbers = version == 0 ? given->mutable_even() : given->mutable_odd();
    const Decision& decision = page.decisions[version];
    // Clients read a group as six doubles.
    static_assert(sizeof(decision.groups[0]) == 6 * sizeof(double), "as LiveMapNumbers says");
    numbers->set_trained_step_offset_bytes(offset_of(decision.trained_step));
    numbers->set_update_counts_offset_bytes(kGroupPageBytes + version * counts_bytes);
    numbers->set_groups_offset_bytes(offset_of(decision.groups[0]));
  }
  given->mutable_parameters()->Add(request.parameters.begin(), request.parameters.end());
  for (const HyperParameters& group : regions.config().groups)
    EncodeHyperParameters(group, given->add_own_groups());
}

// Regions are the group's, then those of the ranks that have any of it, which are told.
absl::StatusOr<std::vector<int>> SetPlaces(const JobRegions& regions, const MapRequest& request,
                                           v1::LiveMapGiven* given) {
  ASSIGN_OR_RETURN(const JobMemory memory, JobMemory::Create(regions.layout(), regions.config()));
  ASSIGN_OR_RETURN(const std::vector<LiveTensor> tensors, TensorsOf(regions, request));
  const int first = regions.local().first(), count = regions.local().count();
  std::vector<int> region_of_rank(count, 0), ranks;
  RETURN_IF_ERROR(ForEachLiveSlice(
      regions.layout(), tensors, first, first + count, [&](const LiveSlice& slice) {
        if (slice.numel == 0) return absl::OkStatus();
        const LiveTensor& tensor = tensors[slice.tensor];
        v1::LiveMapSlice* placed = given->add_slices();
        placed->set_tensor(slice.tensor);
        if (tensor.array == LiveArray::kBuffer) {
          const BufferPlacement& buffers = memory.buffers();
          const int64_t even =
              BufferSlotsOffsetBytes(memory, 0) + buffers.offset_bytes(tensor.job_parameter);
          placed->set_even_offset_bytes(even);
          placed->set_odd_offset_bytes(even + buffers.bank_bytes());
          placed->set_size_bytes(buffers.size_bytes(tensor.job_parameter));
          return absl::OkStatus();
        }
        int& region = region_of_rank[slice.rank - first];
        // 0 is the group's region.
        if (region == 0) {
          ranks.push_back(slice.rank);
          region = static_cast<int>(ranks.size());
        }
        const UnitMemory& unit = memory.units()[tensor.unit];
        const int64_t element_bytes = SizeBytes(unit.full_dtype);
        const int64_t in_array =
            unit.shard_offset_bytes + slice.shard_begin_elements * element_bytes;
        const auto array = static_cast<StateArray>(tensor.array);
        placed->set_region(region);
        placed->set_even_offset_bytes(memory.StateOffsetBytes(array, 0) + in_array);
        placed->set_odd_offset_bytes(memory.StateOffsetBytes(array, 1) + in_array);
        placed->set_size_bytes(slice.numel * element_bytes);
        return absl::OkStatus();
      }));
  return ranks;
}

}  // namespace

absl::Status CheckMappable(const JobRegions& regions, const MapRequest& request) {
  RETURN_IF_ERROR(regions.CheckHasValues());
  if (!regions.state_on_host())
    return absl::FailedPreconditionError("its state is on a GPU: it can be fetched, not mapped");
  return TensorsOf(regions, request).status();
}

absl::StatusOr<PlacedState> PlaceState(const JobRegions& regions, const MapRequest& request) {
  RETURN_IF_ERROR(CheckMappable(regions, request));
  PlacedState placed;
  SetNumbers(regions, request, &placed.places);
  ASSIGN_OR_RETURN(const std::vector<int> ranks, SetPlaces(regions, request, &placed.places));
  // The group and, where the places need it, a file travel in the same packet.
  if (ranks.size() + 2 > kMaxPacketFds) {
    return absl::FailedPreconditionError(absl::StrCat(
        ranks.size(), " ranks of one worker have it: too many to map, it can be fetched"));
  }
  // Read-only descriptors: a client's bug must not reach the state.
  ASSIGN_OR_RETURN(placed.regions.emplace_back(), ReopenForReading(regions.group_fd()));
  // In the order of the places' region numbers: 0 is the group's, ranks follow.
  for (const int rank : ranks) {
    ASSIGN_OR_RETURN(placed.regions.emplace_back(), ReopenForReading(regions.state_fd(Rank(rank))));
  }
  return placed;
}

}  // namespace tessera

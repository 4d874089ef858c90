#include "coordinator/core/rank_assigner.h"

namespace tessera::coordinator {
namespace {

std::set<DeviceId> FreeDevices(const MemberRegistry& members, const std::set<DeviceId>& claimed) {
  std::set<DeviceId> free;
  for (const auto& [worker, member] : members.members()) {
    if (member.lost) continue;
    for (int32_t device = 0; device < member.num_devices; ++device) {
      if (claimed.count({worker, device}) == 0) free.emplace(worker, device);
    }
  }
  return free;
}

}  // namespace

std::optional<std::vector<RankPlacement>> AssignRanks(const MemberRegistry& members,
                                                      const std::set<DeviceId>& claimed,
                                                      const std::vector<RankPlacement>& previous,
                                                      int32_t world_size) {
  std::set<DeviceId> free = FreeDevices(members, claimed);
  if (static_cast<int64_t>(free.size()) < world_size) return std::nullopt;
  std::vector<RankPlacement> placements(world_size);
  std::vector<bool> placed(world_size, false);
  const auto place = [&](int32_t rank, std::set<DeviceId>::iterator device) {
    placements[rank] = {device->first, device->second, members.Find(device->first)->incarnation};
    placed[rank] = true;
    free.erase(device);
  };
  for (size_t rank = 0; rank < previous.size() && rank < placements.size(); ++rank) {
    auto device = free.find({previous[rank].worker, previous[rank].device});
    if (device != free.end()) place(rank, device);
  }
  for (int32_t rank = 0; rank < world_size; ++rank) {
    if (!placed[rank]) place(rank, free.begin());
  }
  return placements;
}

int64_t CountFreeDevices(const MemberRegistry& members, const std::set<DeviceId>& claimed) {
  return FreeDevices(members, claimed).size();
}

}  // namespace tessera::coordinator

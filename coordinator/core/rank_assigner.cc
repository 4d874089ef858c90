#include "coordinator/core/rank_assigner.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace tessera::coordinator {
namespace {

using FreeDevices = std::map<WorkerId, std::set<int32_t>>;

// Workers with at least one free device.
FreeDevices FindFree(const MemberRegistry& members, const PlacementRequest& request) {
  FreeDevices free;
  for (const auto& [worker, member] : members.members()) {
    if (member.lost || request.avoided.count(worker) > 0) continue;
    for (int32_t device = 0; device < member.num_devices; ++device) {
      if (request.claimed.count({worker, device}) == 0) free[worker].insert(device);
    }
  }
  return free;
}

int64_t CountFree(const FreeDevices& free) {
  int64_t count = 0;
  for (const auto& [worker, devices] : free) count += devices.size();
  return count;
}

// Leaves only the worker that is to hold all ranks, or none.
FreeDevices OnOneWorker(FreeDevices free, const PlacementRequest& request) {
  const WorkerId* best = nullptr;
  for (const auto& [worker, devices] : free) {
    if (static_cast<int64_t>(devices.size()) < request.world_size) continue;
    const bool held = !request.previous.empty() && request.previous[0].worker == worker;
    if (held || best == nullptr || devices.size() < free.at(*best).size()) best = &worker;
    if (held) break;
  }
  FreeDevices one;
  if (best != nullptr) one[*best] = std::move(free.at(*best));
  return one;
}

}  // namespace

std::optional<std::vector<RankPlacement>> AssignRanks(const MemberRegistry& members,
                                                      const PlacementRequest& request) {
  FreeDevices free = FindFree(members, request);
  if (request.rule == PlacementRule::kOneWorker) free = OnOneWorker(std::move(free), request);
  if (CountFree(free) < request.world_size) return std::nullopt;
  std::vector<RankPlacement> placements(request.world_size);
  std::vector<bool> placed(request.world_size, false);
  const auto place = [&](size_t rank, const WorkerId& worker, int32_t device) {
    placements[rank] = {worker, device, members.Find(worker)->incarnation};
    placed[rank] = true;
    auto devices = free.find(worker);
    devices->second.erase(device);
    if (devices->second.empty()) free.erase(devices);
  };
  for (size_t rank = 0; rank < request.previous.size() && rank < placements.size(); ++rank) {
    const RankPlacement& was = request.previous[rank];
    auto devices = free.find(was.worker);
    if (devices != free.end() && devices->second.count(was.device) > 0) {
      place(rank, was.worker, was.device);
    }
  }
  for (size_t rank = 0; rank < placements.size(); ++rank) {
    if (placed[rank]) continue;
    const WorkerId worker = free.begin()->first;
    place(rank, worker, *free.begin()->second.begin());
  }
  return placements;
}

std::string DescribeShortage(const MemberRegistry& members, const PlacementRequest& request) {
  const FreeDevices free = FindFree(members, request);
  std::string text;
  if (request.rule == PlacementRule::kSpread) {
    text = absl::StrCat("needs ", request.world_size, " devices, ", CountFree(free),
                        " registered are free");
  } else {
    auto largest = free.end();
    for (auto it = free.begin(); it != free.end(); ++it) {
      if (largest == free.end() || it->second.size() > largest->second.size()) largest = it;
    }
    text = absl::StrCat("needs ", request.world_size, " devices on one worker; largest free: ");
    if (largest == free.end()) {
      absl::StrAppend(&text, "none");
    } else {
      absl::StrAppend(&text, largest->second.size(), " on '", largest->first.value(), "'");
    }
  }
  for (const WorkerId& worker : request.avoided) {
    if (members.Find(worker) != nullptr) {
      absl::StrAppend(&text, "; '", worker.value(), "' is left out");
    }
  }
  return text;
}

}  // namespace tessera::coordinator

#include "coordinator/core/rank_assigner.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/bytes_text.h"

namespace tessera::coordinator {
namespace {

using FreeDevices = std::map<WorkerId, std::set<int32_t>>;

int64_t FreeBytes(const WorkerId& worker, const Member& member, const PlacementRequest& request) {
  const auto claimed = request.claimed.bytes.find(worker);
  return member.memory_bytes - (claimed == request.claimed.bytes.end() ? 0 : claimed->second);
}

const HostMemory& NeedOn(const Member& member, const PlacementRequest& request) {
  return member.device.empty() ? request.cpu_host_memory : request.gpu_host_memory;
}

// How many of the job's ranks the worker has memory for.
int64_t RanksThatFit(const WorkerId& worker, const Member& member,
                     const PlacementRequest& request) {
  const HostMemory& need = NeedOn(member, request);
  // No limit here: the worker itself refuses what it cannot hold.
  if (member.memory_bytes == 0 || need.rank_bytes <= 0) return INT64_MAX;
  return std::max<int64_t>(FreeBytes(worker, member, request) - need.shared_bytes, 0) /
         need.rank_bytes;
}

// Leaves at most as many of a worker's free devices as it can hold ranks of the job. Devices that
// the job had come first.
void Limit(const WorkerId& worker, const Member& member, const PlacementRequest& request,
           std::set<int32_t>* devices) {
  const int64_t told = member.max_ranks_of_job == 0 ? INT64_MAX : member.max_ranks_of_job;
  const auto most = static_cast<size_t>(std::min(told, RanksThatFit(worker, member, request)));
  if (devices->size() <= most) return;
  std::set<int32_t> left;
  for (const RankPlacement& was : request.previous) {
    if (left.size() == most) break;
    if (was.worker == worker && devices->count(was.device) > 0) left.insert(was.device);
  }
  for (auto it = devices->begin(); left.size() < most; ++it) left.insert(*it);
  *devices = std::move(left);
}

std::set<int32_t> FreeOf(const WorkerId& worker, const Member& member,
                         const PlacementRequest& request) {
  std::set<int32_t> devices;
  if (member.lost || request.avoided.count(worker) > 0) return devices;
  for (int32_t device = 0; device < member.num_devices; ++device) {
    if (request.claimed.devices.count({worker, device}) == 0) devices.insert(device);
  }
  return devices;
}

// Workers with at least one free device, with at most as many devices as the job can use.
FreeDevices FindFree(const MemberRegistry& members, const PlacementRequest& request) {
  FreeDevices free;
  for (const auto& [worker, member] : members.members()) {
    std::set<int32_t> devices = FreeOf(worker, member, request);
    Limit(worker, member, request, &devices);
    if (!devices.empty()) free[worker] = std::move(devices);
  }
  return free;
}

// Names workers that have devices for more ranks than they have memory for; empty: none.
std::string DescribeMemoryShortage(const MemberRegistry& members, const PlacementRequest& request) {
  constexpr int kMaxNamed = 3;
  std::string text;
  int found = 0;
  for (const auto& [worker, member] : members.members()) {
    const int64_t fit = RanksThatFit(worker, member, request);
    const int64_t wanted =
        request.ranks_per_worker > 0 ? request.ranks_per_worker : request.world_size;
    const int64_t could = std::min<int64_t>(FreeOf(worker, member, request).size(), wanted);
    if (fit >= could || ++found > kMaxNamed) continue;
    absl::StrAppend(&text, "; ", could, could == 1 ? " rank needs " : " ranks need ",
                    BytesText(NeedOn(member, request).BytesOf(could)), " of memory, '",
                    worker.value(), "' has ", BytesText(FreeBytes(worker, member, request)),
                    " free of ", BytesText(member.memory_bytes));
  }
  if (found > kMaxNamed)
    absl::StrAppend(&text, "; memory is also short on ", found - kMaxNamed, " more workers");
  return text;
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
    // All ranks of such a job were on one worker, so the first stands for all.
    const bool held = !request.previous.empty() && request.previous[0].worker == worker;
    // The one with the fewest free devices leaves the most of them together for later jobs.
    if (held || best == nullptr || devices.size() < free.at(*best).size()) best = &worker;
    if (held) break;
  }
  FreeDevices one;
  if (best != nullptr) one[*best] = std::move(free.at(*best));
  return one;
}

// Leaves only workers whose ranks reach those of other workers.
FreeDevices ThatReachOthers(FreeDevices free, const MemberRegistry& members) {
  for (auto it = free.begin(); it != free.end();) {
    it = members.Find(it->first)->data_host.empty() ? free.erase(it) : std::next(it);
  }
  return free;
}

// Fills the workers with the most free devices, as few as possible, in the order of their ids.
// Requires enough devices.
std::vector<RankPlacement> AcrossWorkers(const FreeDevices& free, const MemberRegistry& members,
                                         int32_t world_size) {
  std::vector<const FreeDevices::value_type*> workers;
  for (const auto& worker : free) workers.push_back(&worker);
  // Stable, so that workers with as many devices stay in the order of their ids.
  std::stable_sort(workers.begin(), workers.end(), [](const auto* a, const auto* b) {
    return a->second.size() > b->second.size();
  });
  size_t found = 0, used = 0;
  while (found < static_cast<size_t>(world_size)) found += workers[used++]->second.size();
  workers.resize(used);
  std::sort(workers.begin(), workers.end(),
            [](const auto* a, const auto* b) { return a->first < b->first; });
  std::vector<RankPlacement> placements;
  for (const auto* worker : workers) {
    for (const int32_t device : worker->second) {
      if (placements.size() == static_cast<size_t>(world_size)) break;
      placements.push_back({worker->first, device, members.Find(worker->first)->incarnation});
    }
  }
  return placements;
}

// Whether `request` asks for several workers with the same number of ranks.
bool WantsGroups(const PlacementRequest& request) {
  return request.ranks_per_worker > 0 && request.ranks_per_worker < request.world_size;
}

// Workers with room for a group, those with the fewest free devices first.
std::vector<WorkerId> WithRoomForAGroup(const FreeDevices& free, const PlacementRequest& request) {
  std::vector<WorkerId> workers;
  for (const auto& [worker, devices] : free) {
    if (devices.size() >= static_cast<size_t>(request.ranks_per_worker)) workers.push_back(worker);
  }
  // The fullest workers first, which leaves the next job the most devices together.
  std::stable_sort(workers.begin(), workers.end(), [&](const WorkerId& a, const WorkerId& b) {
    return free.at(a).size() < free.at(b).size();
  });
  return workers;
}

// Leaves exactly the devices that the groups need, or none.
FreeDevices ForGroups(const FreeDevices& free, const PlacementRequest& request) {
  std::vector<WorkerId> workers = WithRoomForAGroup(free, request);
  const size_t wanted = request.world_size / request.ranks_per_worker;
  if (workers.size() < wanted) return {};
  workers.resize(wanted);
  FreeDevices left;
  for (const WorkerId& worker : workers) {
    const std::set<int32_t>& devices = free.at(worker);
    left[worker] = {devices.begin(), std::next(devices.begin(), request.ranks_per_worker)};
  }
  return left;
}

// Whether the ranks may stay just where they were.
bool AreStillFree(const std::vector<RankPlacement>& placements, const FreeDevices& free) {
  return std::all_of(placements.begin(), placements.end(), [&](const RankPlacement& placement) {
    const auto devices = free.find(placement.worker);
    return devices != free.end() && devices->second.count(placement.device) > 0;
  });
}

std::vector<RankPlacement> WithNewIncarnations(std::vector<RankPlacement> placements,
                                               const MemberRegistry& members) {
  for (RankPlacement& placement : placements) {
    placement.incarnation = members.Find(placement.worker)->incarnation;
  }
  return placements;
}

}  // namespace

void Claims::Add(const JobSpec& spec, const std::vector<DeviceId>& places,
                 const MemberRegistry& members, bool frees_devices) {
  std::map<WorkerId, int64_t> num_ranks;
  for (const DeviceId& place : places) {
    if (!frees_devices) devices.insert(place);
    ++num_ranks[place.first];
  }
  for (const auto& [worker, count] : num_ranks) {
    const Member* member = members.Find(worker);
    const bool on_gpu = member != nullptr && !member->device.empty();
    bytes[worker] += (on_gpu ? spec.gpu_host_memory : spec.cpu_host_memory).BytesOf(count);
  }
}

std::optional<std::vector<RankPlacement>> AssignRanks(const MemberRegistry& members,
                                                      const PlacementRequest& request) {
  FreeDevices free = FindFree(members, request);
  if (request.rule == PlacementRule::kOneWorkerFirst) {
    // Several groups never share a worker: each worker has all shards (ADR 16).
    if (!WantsGroups(request)) {
      PlacementRequest on_one = request;
      on_one.rule = PlacementRule::kOneWorker;
      if (auto placements = AssignRanks(members, on_one)) return placements;
      if (request.ranks_per_worker > 0) return std::nullopt;
    }
    // From here on ranks are on several workers and must be able to connect.
    free = ThatReachOthers(std::move(free), members);
    if (CountFree(free) < request.world_size) return std::nullopt;
    if (request.previous.size() == static_cast<size_t>(request.world_size) &&
        AreStillFree(request.previous, free)) {
      return WithNewIncarnations(request.previous, members);
    }
    if (WantsGroups(request)) free = ForGroups(free, request);
    if (free.empty()) return std::nullopt;
    return AcrossWorkers(free, members, request.world_size);
  }
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
  // First all ranks that can stay, so that no other rank takes their devices.
  for (size_t rank = 0; rank < request.previous.size() && rank < placements.size(); ++rank) {
    const RankPlacement& was = request.previous[rank];
    auto devices = free.find(was.worker);
    if (devices != free.end() && devices->second.count(was.device) > 0) {
      place(rank, was.worker, was.device);
    }
  }
  for (size_t rank = 0; rank < placements.size(); ++rank) {
    if (placed[rank]) continue;
    // A copy: with its last device the worker leaves the map.
    const WorkerId worker = free.begin()->first;
    place(rank, worker, *free.begin()->second.begin());
  }
  return placements;
}

std::optional<std::vector<RankPlacement>> ReplaceGroups(const MemberRegistry& members,
                                                        const PlacementRequest& request,
                                                        const std::set<WorkerId>& kept) {
  FreeDevices free = ThatReachOthers(FindFree(members, request), members);
  // A worker with one group of the job gets no second one, because it would lose both at once.
  for (const WorkerId& worker : kept) free.erase(worker);
  std::vector<WorkerId> others = WithRoomForAGroup(free, request);
  const auto take = [&](std::vector<WorkerId>::iterator worker) {
    WorkerId taken = std::move(*worker);
    others.erase(worker);
    return taken;
  };
  std::vector<RankPlacement> placements = request.previous;
  const auto group_size = static_cast<size_t>(request.ranks_per_worker);
  std::vector<size_t> homeless;  // By the group's first rank.
  const auto place = [&](size_t first, const WorkerId& worker) {
    auto device = free.at(worker).begin();
    for (size_t rank = first; rank < first + group_size; ++rank, ++device)
      placements[rank] = {worker, *device, members.Find(worker)->incarnation};
  };
  // First the groups that can return, so that no homeless group takes their workers.
  for (size_t first = 0; first < placements.size(); first += group_size) {
    const WorkerId& was = request.previous[first].worker;
    if (kept.count(was) > 0) continue;
    const auto back = std::find(others.begin(), others.end(), was);
    if (back == others.end()) {
      homeless.push_back(first);
    } else {
      place(first, take(back));
    }
  }
  for (const size_t first : homeless) {
    if (others.empty()) return std::nullopt;
    place(first, take(others.begin()));
  }
  return placements;
}

std::string DescribeShortage(const MemberRegistry& members, const PlacementRequest& request) {
  const FreeDevices free = FindFree(members, request);
  std::string text;
  if (request.rule == PlacementRule::kSpread) {
    text = absl::StrCat("needs ", request.world_size, " devices, ", CountFree(free),
                        " registered are free");
  } else if (WantsGroups(request)) {
    const FreeDevices reaching = ThatReachOthers(free, members);
    text =
        absl::StrCat("needs ", request.world_size / request.ranks_per_worker, " workers with ",
                     request.ranks_per_worker, " free devices each, whose ranks reach each other; ",
                     "there are ", WithRoomForAGroup(reaching, request).size());
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
    const int64_t together = CountFree(ThatReachOthers(free, members));
    if (request.rule == PlacementRule::kOneWorkerFirst && together > 0) {
      absl::StrAppend(&text, "; on workers whose ranks reach each other: ", together);
    }
  }
  for (const auto& [worker, devices] : free) {
    const Member& member = *members.Find(worker);
    if (member.max_ranks_of_job == 0 || member.max_ranks_of_job >= request.world_size) continue;
    absl::StrAppend(&text, "; '", worker.value(), "' holds ", member.max_ranks_of_job,
                    member.max_ranks_of_job == 1 ? " rank of a job" : " ranks of a job",
                    member.device.empty() ? "" : ": ", member.device);
  }
  absl::StrAppend(&text, DescribeMemoryShortage(members, request));
  for (const WorkerId& worker : request.avoided) {
    if (members.Find(worker) != nullptr) {
      absl::StrAppend(&text, "; '", worker.value(), "' is left out");
    }
  }
  return text;
}

}  // namespace tessera::coordinator

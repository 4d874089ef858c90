// What an executor has of its job: the setup's message decoded and all regions mapped.
#ifndef TESSERA_WORKER_EXECUTOR_EXECUTOR_MEMORY_H_
#define TESSERA_WORKER_EXECUTOR_EXECUTOR_MEMORY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "job/job_memory.h"
#include "job/rank_topology.h"
#include "layout/model_layout.h"
#include "shm/control_page.h"
#include "shm/fd_passing.h"
#include "shm/flight_ring.h"
#include "shm/region.h"
#include "worker/device/mapped_parameters.h"
#include "worker/device/rank_device.h"
#include "worker/engine/group_page.h"

namespace tessera {

// Where the update counts, the slots of buffers and the communicator's channel start in the group
// region.
inline constexpr int64_t kGroupPageBytes =
    (sizeof(GroupPage) + kPageBytes - 1) / kPageBytes * kPageBytes;
// Of each of the worker's ranks: of versions of the state whose step is even, then of the others.
inline int64_t BufferSlotsOffsetBytes(const JobMemory& plan, int local_index) {
  const int64_t counts_bytes = UpdateCounts::SizeBytes(plan.num_parameters());
  return kGroupPageBytes + (counts_bytes + kPageBytes - 1) / kPageBytes * kPageBytes +
         2 * local_index * plan.buffers().bank_bytes();
}
inline int64_t ChannelOffsetBytes(const JobMemory& plan, int num_local_ranks) {
  return BufferSlotsOffsetBytes(plan, num_local_ranks);
}

// What the packet of a setup says, before the device's name (see DeviceName). Not in the
// control page only, to which the trainer writes.
inline constexpr char kSetupPacket[] = "setup of device ";
// The same where no process can map another's memory of the device: see DeviceMemory.
inline constexpr char kSetupInProcessPacket[] = "setup in its trainer's process, of device ";

// Move-only; thread-compatible. The mappings keep their addresses when it is moved.
struct ExecutorMemory {
  std::string job_id;
  std::vector<std::string> save_roots;  // As Job.save_roots.
  Rank rank;
  JobConfig config;
  ModelLayout layout;
  JobMemory plan;
  // Where the ranks of this worker have their parameters, gradients and shards.
  std::unique_ptr<RankDevice> device;
  MappedParameters parameters;  // On the device.
  Buffer state;                 // On the device, unless it is offloaded.
  Buffer pinned_sums;           // See PinSums.
  // What is on the device is this process's own, and new: the state is in the host's memory.
  bool in_process = false;
  Mapping group;
  Mapping control;
  Mapping flight;
  RankTopology topology = RankTopology::OneHost(1);  // A host is a worker.
  std::string data_host;                             // Where to listen for other workers' ranks.
  // Of this worker's ranks; only the own one is written, by the trainer.
  std::vector<Mapping> gradients;
  std::vector<Buffer> device_gradients;  // The same on a separate device; else none.

  // Errors: InvalidArgument  the packet is not a setup, or a region is smaller than the plan needs,
  //                          or the flight ring is of another version.
  //         FailedPrecondition  a page, or who wrote the setup, is of another version.
  //         ResourceExhausted  its memory cannot be taken; and those of MakeRankDevice
  static absl::StatusOr<ExecutorMemory> FromSetup(Packet packet, const MakeRankDevice& make_device);

  // Whether this process can read and write the state by itself.
  bool state_is_addressable() const {
    return !device->is_separate() || in_process || config.cpu_offload;
  }

  // For a state that is not on the device: makes the device's copies of reduced gradients to it
  // asynchronous. Optional, and takes a second for some GiB: call it concurrently with other use.
  void PinSums();

  int64_t LargestShard() const;       // ELEMENTS, of any unit.
  int64_t LargestShardBytes() const;  // In the full dtype: gradients have no larger one.
  int local_index() const { return topology.LocalIndex(static_cast<int>(rank.value())); }
  int num_local_ranks() const { return topology.NumRanks(host()); }
  int host() const { return topology.HostOf(static_cast<int>(rank.value())); }
  bool spans_workers() const { return topology.num_hosts() > 1; }
  UpdateCounts update_counts() const {
    return UpdateCounts(group.data() + kGroupPageBytes, plan.num_parameters());
  }
  // Whether the rank has its part of the job's values, as far as this worker has heard.
  bool has_values() const { return group_page()->initialized.load() != 0 && !lacks_values(); }
  bool lacks_values() const { return group_page()->ranks[local_index()].lacks_values.load() != 0; }
  // Whether some trainer of this rank was another user's than the worker's, ever.
  bool had_foreign_trainer() const {
    return group_page()->ranks[local_index()].had_foreign_trainer.load() != 0;
  }
  GroupPage* group_page() const { return reinterpret_cast<GroupPage*>(group.data()); }
  ControlPage* control_page() const { return reinterpret_cast<ControlPage*>(control.data()); }
  FlightRing* flight_ring() const { return reinterpret_cast<FlightRing*>(flight.data()); }
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_EXECUTOR_MEMORY_H_

// All memory of one job on this worker: made once, handed out as descriptors, gone with the job.
// Move-only; immutable after Create, so reads need no lock.
#ifndef TESSERA_WORKER_KEEPER_JOB_REGIONS_H_
#define TESSERA_WORKER_KEEPER_JOB_REGIONS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/unique_fd.h"
#include "job/job_memory.h"
#include "job/rank_topology.h"
#include "layout/model_layout.h"
#include "proto/coordinator.pb.h"
#include "shm/control_page.h"
#include "shm/flight_ring.h"
#include "shm/region.h"
#include "worker/device/device_memory.h"
#include "worker/engine/group_page.h"
#include "worker/keeper/memory_budget.h"

namespace tessera {

// Bytes that really are in memory now, not what was reserved.
struct RankMemoryBytes {
  int64_t parameters = 0;  // The rank's share of the host's one copy.
  int64_t gradients = 0;
  int64_t optimizer = 0;  // Both versions of the shard's state and its reduced gradient.
};

// The ranks of a job that are on this worker.
struct LocalRanks {
  RankTopology topology = RankTopology::OneHost(1);  // A host is a worker.
  int host = 0;                                      // This one.

  int first() const { return topology.FirstRank(host); }
  int count() const { return topology.NumRanks(host); }
  bool Has(int64_t rank) const { return rank >= first() && rank < first() + count(); }
  bool spans_workers() const { return topology.num_hosts() > 1; }
  friend bool operator==(const LocalRanks& a, const LocalRanks& b) {
    return a.topology == b.topology && a.host == b.host;
  }
};

// Errors: InvalidArgument  a rank has no place, or the ranks of a worker do not follow each other
//         NotFound         no rank of the job is on `worker_id`
absl::StatusOr<LocalRanks> LocalRanksOf(const v1::Job& job, const std::string& worker_id);

// By part, what a process that holds a job's memory has of it.
using JobDescriptors = std::map<std::string, std::vector<UniqueFd>>;

class JobRegions {
 public:
  // Errors: InvalidArgument    the job's model or config is invalid, or another number of ranks is
  //                            placed
  //         ResourceExhausted  no memory or descriptors; more than `budget`, if there is one, has
  //         those of DeviceMemory::Create
  // `device_memory` has the parameters, and of each rank gradients and state (but state that is
  // offloaded, or that processes could not share there); null: all are in host memory.
  static absl::StatusOr<JobRegions> Create(const v1::Job& job, const LocalRanks& local,
                                           DeviceMemory* device_memory = nullptr,
                                           MemoryBudget* budget = nullptr);
  // Maps the same host memory again, from what Descriptors() returned, whether or not `budget` has
  // so much.
  // Errors: InvalidArgument  it is not the memory of such a job
  static absl::StatusOr<JobRegions> Restore(const v1::Job& job, const LocalRanks& local,
                                            MemoryBudget* budget, JobDescriptors held);
  // What another process must hold so that the memory outlives this one: owned by this. Of host
  // memory only.
  std::map<std::string, std::vector<int>> Descriptors() const;

  const ModelLayout& layout() const { return layout_; }
  const JobConfig& config() const { return config_; }
  const LocalRanks& local() const { return local_; }
  // As DeviceMemory's; not empty: a rank's executor must be in its trainer's process.
  const std::string& why_not_shared() const { return why_not_shared_; }
  UpdateCounts update_counts() const;
  // Of these the rank is one of this worker's.
  ControlPage* control(Rank rank) const;
  GroupPage* group() const;
  // Written by the rank's executors, whichever lives; untrusted.
  const FlightRing& flight(Rank rank) const;
  RankMemoryBytes Measure(Rank rank) const;
  // For a reader of the rank's state region that may outlive this. Errors: ResourceExhausted no
  // descriptors; as DeviceMemory::OpenReader
  absl::StatusOr<std::unique_ptr<MemoryReader>> OpenState(Rank rank) const;
  // The same of the group region, where the slots of buffers are.
  absl::StatusOr<std::unique_ptr<MemoryReader>> OpenGroup() const;
  // Errors: FailedPrecondition  the job has no values yet
  //         Unavailable         this worker's ranks are about to be given them by others
  absl::Status CheckHasValues() const;
  // Whether the ranks' states are in host memory.
  bool state_on_host() const { return state_on_host_; }
  // Owned by this.
  int state_fd(Rank rank) const { return Of(rank).state.get(); }
  int group_fd() const { return group_.fd(); }

  // Its executors have taken the memory. One caller at a time.
  void SetTaken() const { memory_.SetTaken(); }

  // Sends an executor its setup.
  absl::Status SendSetup(int socket, const v1::Job& job, Rank rank,
                         const std::string& data_host) const;
  // Descriptors for a trainer: parameters, own gradients, own control page; of a rank on a GPU its
  // gradients there, and the slots of parameters if there are any. Parameters in host memory are
  // read-only. Errors: as ReopenForReading
  absl::StatusOr<std::vector<UniqueFd>> TrainerFds(Rank rank) const;
  // Ends every wait of the group's collectives in `epoch`.
  void AbortCollectives(Epoch epoch, const absl::Status& reason) const;

 private:
  struct RankRegions {
    SharedRegion gradients;
    UniqueFd state;
    UniqueFd device_gradients;  // Invalid: no device.
    SharedRegion control;
    SharedRegion flight;
    Mapping control_mapping;
    Mapping flight_mapping;  // Read-only.
  };
  JobRegions(UniqueFd parameters, SharedRegion group)
      : parameters_(std::move(parameters)), group_(std::move(group)) {}
  class Source;
  static absl::StatusOr<JobRegions> Make(const v1::Job& job, const LocalRanks& local,
                                         DeviceMemory* device_memory, MemoryBudget* budget,
                                         Source* source);
  static absl::StatusOr<RankRegions> MakeRank(int rank, const JobMemory& plan,
                                              DeviceMemory* device_memory, bool state_on_host,
                                              Source* source);

  const RankRegions& Of(Rank rank) const { return ranks_[rank.value() - local_.first()]; }

  mutable MemoryBudget::Reservation memory_;
  ModelLayout layout_;
  JobConfig config_;
  LocalRanks local_;
  int num_parameters_ = 0;
  DeviceMemory* device_memory_ = nullptr;
  std::string why_not_shared_;
  bool state_on_host_ = true;
  int64_t state_bytes_ = 0;
  RankMemoryBytes device_bytes_;  // What a rank takes of a device.
  UniqueFd parameters_;
  std::vector<UniqueFd> slots_;  // Of the parameters: see ParameterPlan.
  SharedRegion group_;
  Mapping group_mapping_;
  int64_t channel_offset_bytes_ = 0;
  std::vector<RankRegions> ranks_;  // This worker's.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_JOB_REGIONS_H_

#include "worker/keeper/job_regions.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/job_codec.h"
#include "job/job_layout.h"
#include "proto/executor.pb.h"
#include "worker/comm/shm/shm_communicator.h"
#include "worker/executor/executor_memory.h"
#include "worker/memory/fd_passing.h"

namespace tessera {
namespace {

// Of an executor's setup beside the ranks' gradients.
constexpr size_t kSetupFds = 6;
static_assert(kSetupFds + kMaxLocalRanks <= kMaxPacketFds, "a setup does not fit in a packet");

int64_t ResidentBytes(const SharedRegion& region) {
  struct stat info;
  return fstat(region.fd(), &info) == 0 ? static_cast<int64_t>(info.st_blocks) * 512 : 0;
}

// Makes a flight ring of `region`; returns a mapping to read it by.
absl::StatusOr<Mapping> FormatAndMap(const SharedRegion& region) {
  ASSIGN_OR_RETURN(const Mapping writable, Mapping::CreateWhole(region.fd(), Access::kReadWrite));
  FormatFlightRing(reinterpret_cast<FlightRing*>(writable.data()));
  return Mapping::CreateWhole(region.fd(), Access::kReadOnly);
}

}  // namespace

absl::StatusOr<LocalRanks> LocalRanksOf(const v1::Job& job, const std::string& worker_id) {
  std::vector<std::string> workers(job.placements_size());
  for (const v1::RankPlacement& placement : job.placements()) {
    if (placement.rank() < 0 || placement.rank() >= job.placements_size() ||
        !workers[placement.rank()].empty()) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", placement.rank(), " of ",
                                                     job.placements_size(),
                                                     " has two places, "
                                                     "or is none"));
    }
    workers[placement.rank()] = placement.worker_id();
  }
  LocalRanks local;
  ASSIGN_OR_RETURN(local.topology, RankTopology::Create(workers));
  const auto first = std::find(workers.begin(), workers.end(), worker_id);
  if (first == workers.end()) {
    return absl::NotFoundError(
        absl::StrCat("no rank of job '", job.job_id(), "' is on worker '", worker_id, "'"));
  }
  local.host = local.topology.HostOf(static_cast<int>(first - workers.begin()));
  return local;
}

absl::StatusOr<JobRegions> JobRegions::Create(const v1::Job& job, const LocalRanks& local) {
  ASSIGN_OR_RETURN(const ModelSpec model, DecodeModel(job.model()));
  ASSIGN_OR_RETURN(JobConfig config, DecodeJobConfig(job.config()));
  RETURN_IF_ERROR(ValidateJobConfig(config, model));
  if (local.topology.world_size() != config.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(local.topology.world_size(), " ranks of ",
                                                   config.world_size, " have a place"));
  }
  ASSIGN_OR_RETURN(ModelLayout layout, LayOut(model, config));
  ASSIGN_OR_RETURN(const JobMemory plan, JobMemory::Create(layout, config));
  ASSIGN_OR_RETURN(const int64_t channel_bytes,
                   ShmCommunicator::RequiredBytes(local.count(), ShmCommunicator::Options()));
  ASSIGN_OR_RETURN(SharedRegion parameters, SharedRegion::Create(job.job_id() + "/parameters",
                                                                 plan.parameter_region_bytes()));
  ASSIGN_OR_RETURN(
      SharedRegion group,
      SharedRegion::Create(job.job_id() + "/group", ChannelOffsetBytes(plan) + channel_bytes));
  JobRegions regions(std::move(parameters), std::move(group));
  ASSIGN_OR_RETURN(regions.group_mapping_,
                   Mapping::CreateWhole(regions.group_.fd(), Access::kReadWrite));
  for (int rank = local.first(); rank < local.first() + local.count(); ++rank) {
    const std::string label = absl::StrCat(job.job_id(), "/", rank);
    ASSIGN_OR_RETURN(SharedRegion gradients,
                     SharedRegion::Create(label + "/gradients", plan.gradient_region_bytes()));
    ASSIGN_OR_RETURN(SharedRegion state,
                     SharedRegion::Create(label + "/state", plan.state_region_bytes()));
    ASSIGN_OR_RETURN(SharedRegion control,
                     SharedRegion::Create(label + "/control", sizeof(ControlPage)));
    ASSIGN_OR_RETURN(Mapping mapping, Mapping::CreateWhole(control.fd(), Access::kReadWrite));
    reinterpret_cast<ControlPage*>(mapping.data())->version = kControlPageVersion;
    ASSIGN_OR_RETURN(SharedRegion flight,
                     SharedRegion::Create(label + "/flight", sizeof(FlightRing)));
    ASSIGN_OR_RETURN(Mapping flight_mapping, FormatAndMap(flight));
    regions.ranks_.push_back({std::move(gradients), std::move(state), std::move(control),
                              std::move(flight), std::move(mapping), std::move(flight_mapping)});
  }
  regions.channel_offset_bytes_ = ChannelOffsetBytes(plan);
  regions.num_parameters_ = plan.num_parameters();
  regions.local_ = local;
  regions.layout_ = std::move(layout);
  regions.config_ = std::move(config);
  return regions;
}

ControlPage* JobRegions::control(Rank rank) const {
  return reinterpret_cast<ControlPage*>(Of(rank).control_mapping.data());
}

const FlightRing& JobRegions::flight(Rank rank) const {
  return *reinterpret_cast<const FlightRing*>(Of(rank).flight_mapping.data());
}

GroupPage* JobRegions::group() const { return reinterpret_cast<GroupPage*>(group_mapping_.data()); }

RankMemoryBytes JobRegions::Measure(Rank rank) const {
  const RankRegions& regions = Of(rank);
  return {ResidentBytes(parameters_) / static_cast<int64_t>(ranks_.size()),
          ResidentBytes(regions.gradients), ResidentBytes(regions.state)};
}

UpdateCounts JobRegions::update_counts() const {
  return UpdateCounts(group_mapping_.data() + kGroupPageBytes, num_parameters_);
}

absl::Status JobRegions::SendSetup(int socket, const v1::Job& job, Rank rank,
                                   const std::string& data_host) const {
  v1::ExecutorSetup setup;
  *setup.mutable_job() = job;
  setup.mutable_job()->clear_ranks();
  setup.set_rank(rank.value());
  setup.set_data_host(data_host);
  const std::string bytes = setup.SerializeAsString();
  ASSIGN_OR_RETURN(const SharedRegion message,
                   SharedRegion::Create(job.job_id() + "/setup", bytes.size()));
  {
    ASSIGN_OR_RETURN(const Mapping mapping, Mapping::CreateWhole(message.fd(), Access::kReadWrite));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(mapping.data()));
  }
  const RankRegions& own = Of(rank);
  const int own_fds[kSetupFds] = {message.fd(),   parameters_.fd(), group_.fd(),
                                  own.state.fd(), own.control.fd(), own.flight.fd()};
  std::vector<int> fds(std::begin(own_fds), std::end(own_fds));
  for (const RankRegions& regions : ranks_) fds.push_back(regions.gradients.fd());
  return SendPacket(socket, "setup", fds);
}

std::vector<int> JobRegions::TrainerFds(Rank rank) const {
  const RankRegions& own = Of(rank);
  return {parameters_.fd(), own.gradients.fd(), own.control.fd()};
}

void JobRegions::AbortCollectives(Epoch epoch, const absl::Status& reason) const {
  if (epoch.value() < 1) return;
  ShmCommunicator::Options options;
  options.base = group_mapping_.data() + channel_offset_bytes_;
  options.bytes = group_mapping_.size_bytes() - channel_offset_bytes_;
  options.size = local_.count();
  options.epoch = static_cast<uint32_t>(epoch.value());
  (void)ShmCommunicator::AbortEpoch(options, reason);
}

}  // namespace tessera

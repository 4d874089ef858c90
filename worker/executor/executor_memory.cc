#include "worker/executor/executor_memory.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/job_codec.h"
#include "job/job_layout.h"
#include "proto/executor.pb.h"

namespace tessera {
namespace {

absl::StatusOr<Mapping> MapAtLeast(int fd, int64_t size_bytes, Access access,
                                   absl::string_view what) {
  absl::StatusOr<Mapping> mapping = Mapping::CreateWhole(fd, access);
  if (!mapping.ok()) return Annotate(mapping.status(), what);
  if (mapping->size_bytes() < size_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " region has ", mapping->size_bytes(), " bytes of ", size_bytes));
  }
  return mapping;
}

absl::StatusOr<RankTopology> TopologyOf(const v1::Job& job, int world_size) {
  std::vector<std::string> workers(world_size);
  for (const v1::RankPlacement& placement : job.placements()) {
    if (placement.rank() < 0 || placement.rank() >= world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("executor setup: rank ", placement.rank(), " of ", world_size, " placed"));
    }
    workers[placement.rank()] = placement.worker_id();
  }
  return RankTopology::Create(workers);
}

}  // namespace

absl::StatusOr<ExecutorMemory> ExecutorMemory::FromSetup(Packet packet) {
  constexpr size_t kFixedFds = 6;
  if (packet.fds.size() <= kFixedFds)
    return absl::InvalidArgumentError("executor setup: too few descriptors");
  ASSIGN_OR_RETURN(const Mapping message,
                   Mapping::CreateWhole(packet.fds[0].get(), Access::kReadOnly));
  v1::ExecutorSetup setup;
  if (!setup.ParseFromArray(message.data(), message.size_bytes())) {
    return absl::InvalidArgumentError("executor setup: malformed message");
  }
  ExecutorMemory memory;
  memory.job_id = setup.job().job_id();
  memory.rank = Rank(setup.rank());
  ASSIGN_OR_RETURN(const ModelSpec model, DecodeModel(setup.job().model()));
  ASSIGN_OR_RETURN(memory.config, DecodeJobConfig(setup.job().config()));
  RETURN_IF_ERROR(ValidateJobConfig(memory.config, model));
  const int world_size = memory.config.world_size;
  memory.data_host = setup.data_host();
  ASSIGN_OR_RETURN(memory.topology, TopologyOf(setup.job(), world_size));
  if (setup.rank() < 0 || setup.rank() >= world_size ||
      packet.fds.size() != kFixedFds + memory.topology.NumRanks(memory.host())) {
    return absl::InvalidArgumentError(
        absl::StrCat("executor setup: rank ", setup.rank(), " of ", world_size));
  }
  ASSIGN_OR_RETURN(memory.layout, LayOut(model, memory.config));
  ASSIGN_OR_RETURN(memory.plan, JobMemory::Create(memory.layout, memory.config));
  const JobMemory& plan = memory.plan;
  ASSIGN_OR_RETURN(memory.parameters, MapAtLeast(packet.fds[1].get(), plan.parameter_region_bytes(),
                                                 Access::kReadWrite, "parameter"));
  ASSIGN_OR_RETURN(memory.group, MapAtLeast(packet.fds[2].get(), ChannelOffsetBytes(plan) + 1,
                                            Access::kReadWrite, "group"));
  ASSIGN_OR_RETURN(memory.state, MapAtLeast(packet.fds[3].get(), plan.state_region_bytes(),
                                            Access::kReadWrite, "state"));
  ASSIGN_OR_RETURN(memory.control, MapAtLeast(packet.fds[4].get(), sizeof(ControlPage),
                                              Access::kReadWrite, "control"));
  ASSIGN_OR_RETURN(memory.flight, MapAtLeast(packet.fds[5].get(), sizeof(FlightRing),
                                             Access::kReadWrite, "flight"));
  RETURN_IF_ERROR(CheckFlightRing(*memory.flight_ring()));
  memory.flight.Populate();  // No step is to fault in the pages it writes to.
  const int own = memory.topology.LocalIndex(setup.rank());
  for (size_t fd = kFixedFds; fd < packet.fds.size(); ++fd) {
    // Its own one also takes what the trainer wants to read.
    const Access access =
        static_cast<int>(fd - kFixedFds) == own ? Access::kReadWrite : Access::kReadOnly;
    ASSIGN_OR_RETURN(
        Mapping gradients,
        MapAtLeast(packet.fds[fd].get(), plan.gradient_region_bytes(), access, "gradient"));
    memory.gradients.push_back(std::move(gradients));
  }
  return memory;
}

}  // namespace tessera

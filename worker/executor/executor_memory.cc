#include "worker/executor/executor_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/version.h"
#include "job/job_codec.h"
#include "job/job_layout.h"
#include "proto/executor.pb.h"
#include "worker/device/host/host_rank_device.h"

namespace tessera {
namespace {

absl::StatusOr<Mapping> MapAtLeast(int fd, int64_t size_bytes, Access access,
                                   absl::string_view what) {
  absl::StatusOr<Mapping> mapping = Mapping::CreateWhole(fd, access);
  if (!mapping.ok()) return Annotate(mapping.status(), what);
  // The worker's arithmetic and this one must agree. A region that is too small would be a SIGBUS.
  if (mapping->size_bytes() < size_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " region has ", mapping->size_bytes(), " bytes of ", size_bytes));
  }
  return mapping;
}

absl::StatusOr<RankTopology> TopologyOf(const v1::Job& job, int world_size) {
  std::vector<std::string> workers(world_size);
  for (const v1::RankPlacement& placement : job.placements()) {
    // The worker checked the placements. These bounds guard the vector.
    if (placement.rank() < 0 || placement.rank() >= world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("executor setup: rank ", placement.rank(), " of ", world_size, " placed"));
    }
    workers[placement.rank()] = placement.worker_id();
  }
  return RankTopology::Create(workers);
}

absl::Status CheckPage(absl::string_view what, uint32_t version, uint32_t own_version) {
  if (version == own_version) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " has version ", version, ", and this executor's has ", own_version,
                   ": the worker and its executors have to have the same version"));
}

// Where each descriptor is in the packet, see proto/executor.proto.
enum SetupFd { kMessage, kParameters, kGroup, kState, kControl, kFlight, kFixedFds };

absl::StatusOr<v1::ExecutorSetup> ReadSetup(const Packet& packet) {
  if (packet.fds.size() <= kFixedFds)
    return absl::InvalidArgumentError("executor setup: too few descriptors");
  ASSIGN_OR_RETURN(const Mapping message,
                   Mapping::CreateWhole(packet.fds[kMessage].get(), Access::kReadOnly));
  v1::ExecutorSetup setup;
  if (!setup.ParseFromArray(message.data(), message.size_bytes())) {
    return absl::InvalidArgumentError("executor setup: malformed message");
  }
  RETURN_IF_ERROR(CheckVersion("the worker", setup.version(), setup.protocol()));
  return setup;
}

// Those in host memory except the gradients, and those that others read.
absl::Status MapHostRegions(const Packet& packet, ExecutorMemory* memory) {
  const auto map = [&](SetupFd fd, int64_t size_bytes, absl::string_view what) {
    return MapAtLeast(packet.fds[fd].get(), size_bytes, Access::kReadWrite, what);
  };
  // One byte at least of the communicator's channels, whose size is checked where they are joined.
  ASSIGN_OR_RETURN(
      memory->group,
      map(kGroup, ChannelOffsetBytes(memory->plan, memory->num_local_ranks()) + 1, "group"));
  ASSIGN_OR_RETURN(memory->control, map(kControl, sizeof(ControlPage), "control"));
  ASSIGN_OR_RETURN(memory->flight, map(kFlight, sizeof(FlightRing), "flight"));
  // Before any other word of a page is used: another build may have laid it out otherwise.
  RETURN_IF_ERROR(CheckPage("the ranks' page", memory->group_page()->version, kGroupPageVersion));
  RETURN_IF_ERROR(
      CheckPage("the control page", memory->control_page()->version, kControlPageVersion));
  RETURN_IF_ERROR(CheckFlightRing(*memory->flight_ring()));
  memory->flight.Populate();  // No step is to fault in the pages it writes to.
  return absl::OkStatus();
}

absl::Status MapDeviceRegions(const Packet& packet, ParameterPlan parameters,
                              ExecutorMemory* memory) {
  const JobMemory& plan = memory->plan;
  RankDevice& device = *memory->device;
  // The caller has checked that there are as many descriptors as this arithmetic needs.
  const size_t first_slot = packet.fds.size() - parameters.num_slots();
  ASSIGN_OR_RETURN(memory->parameters,
                   MappedParameters::Map(std::move(parameters), memory->layout, plan, memory->rank,
                                         &device, packet.fds[kParameters],
                                         absl::MakeConstSpan(packet.fds).subspan(first_slot),
                                         /*writable=*/true));
  HostRankDevice host;
  RankDevice& of_state = memory->state_is_addressable() ? host : device;
  absl::StatusOr<Buffer> state =
      of_state.MapRegion(packet.fds[kState].get(), plan.state_region_bytes(), /*writable=*/true);
  RETURN_IF_ERROR(Annotate(state.status(), "state"));
  memory->state = *std::move(state);
  return absl::OkStatus();
}

absl::Status MapGradients(const Packet& packet, ExecutorMemory* memory) {
  const int num_ranks = memory->topology.NumRanks(memory->host());
  const int own = memory->topology.LocalIndex(static_cast<int>(memory->rank.value()));
  for (int i = 0; i < num_ranks; ++i) {
    // Its own one also takes what the trainer wants to read.
    // Peers' gradients are only read.
    const Access access = i == own ? Access::kReadWrite : Access::kReadOnly;
    ASSIGN_OR_RETURN(Mapping gradients,
                     MapAtLeast(packet.fds[kFixedFds + i].get(),
                                memory->plan.gradient_region_bytes(), access, "gradient"));
    memory->gradients.push_back(std::move(gradients));
    if (!memory->device->is_separate()) continue;
    absl::StatusOr<Buffer> on_device =
        memory->device->MapRegion(packet.fds[kFixedFds + num_ranks + i].get(),
                                  memory->plan.device_gradient_region_bytes(), i == own);
    RETURN_IF_ERROR(Annotate(on_device.status(), "gradients on the device"));
    memory->device_gradients.push_back(*std::move(on_device));
  }
  return absl::OkStatus();
}

// Of a region that an executor was given.
struct RegionPart {
  int fd;
  int64_t offset_bytes, size_bytes;
  absl::string_view what;
};

// Of the host's memory, what this rank writes, sooner or later. What an optimizer writes once it
// has momentum is counted and not taken.
std::vector<RegionPart> PartsToTake(const Packet& packet, const ExecutorMemory& memory) {
  const JobMemory& plan = memory.plan;
  const int own = memory.local_index();
  // Places for buffers that never change take no memory.
  const int64_t gradient_bytes =
      std::min(plan.staged_buffers_offset_bytes(), plan.gradient_region_bytes());
  std::vector<RegionPart> parts = {
      {packet.fds[kFixedFds + own].get(), 0, gradient_bytes, "gradients"}};
  if (memory.state_is_addressable()) {
    const std::vector<ParamGroup>& groups = memory.config.groups;
    const bool has_moments = memory.config.optimizer != OptimizerKind::kSgd ||
                             std::any_of(groups.begin(), groups.end(),
                                         [](const ParamGroup& g) { return g.momentum != 0; });
    const int64_t parameters = plan.StateOffsetBytes(StateArray::kFirstMoment, 0);
    const auto num_moments =
        has_moments ? static_cast<int64_t>(MomentsOf(memory.config.optimizer).size()) : 0;
    const int64_t reduced = plan.ReducedGradientOffsetBytes();
    const int state = packet.fds[kState].get();
    parts.push_back({state, 0, parameters * (1 + num_moments), "state"});
    parts.push_back({state, reduced, plan.state_region_bytes() - reduced, "reduced gradients"});
  }
  // One rank takes what all share.
  if (own == 0 && !memory.device->is_separate()) {
    const HostMemory host = plan.host_memory(/*parameters_on_host=*/true, /*state_on_host=*/true);
    parts.push_back({packet.fds[kParameters].get(), 0, host.shared_bytes, "parameters"});
  }
  return parts;
}

// So that no step runs out of memory, nor faults. If there is not enough, a job that has not
// started keeps none.
absl::Status TakeHostMemory(const Packet& packet, const ExecutorMemory& memory) {
  const std::vector<RegionPart> parts = PartsToTake(packet, memory);
  absl::Status status;
  for (const RegionPart& part : parts) {
    status = Annotate(TakeMemory(part.fd, part.offset_bytes, part.size_bytes),
                      absl::StrCat("the ", part.what, " of rank ", memory.rank.value()));
    if (!status.ok()) break;
  }
  // Epochs have begun here: the memory holds a state, whatever is missing of it.
  if (status.ok() || memory.group_page()->has_begun.load() != 0) return status;
  // Another job may need it while this one waits for room.
  for (const RegionPart& part : parts) GiveMemoryBack(part.fd, part.offset_bytes, part.size_bytes);
  return status;
}

}  // namespace

int64_t ExecutorMemory::LargestShard() const {
  int64_t numel = 1;
  for (const UnitLayout& unit : layout.units) numel = std::max(numel, unit.shards.shard_numel());
  return numel;
}

int64_t ExecutorMemory::LargestShardBytes() const {
  int64_t bytes = 1;
  for (size_t i = 0; i < layout.units.size(); ++i) {
    const int64_t numel = layout.units[i].shards.shard_numel();
    bytes = std::max(bytes, numel * SizeBytes(plan.units()[i].full_dtype));
  }
  return bytes;
}

void ExecutorMemory::PinSums() {
  if (!device->is_separate() || !state_is_addressable()) return;
  const absl::Time began = SteadyNow();
  const int64_t begin = plan.ReducedGradientOffsetBytes();
  const int64_t size_bytes = plan.state_region_bytes() - begin;
  // On a thread of its own: pinning takes long, and sums work without it.
  absl::StatusOr<Buffer> pinned = device->Pin(state.data_as<std::byte>() + begin, size_bytes);
  if (pinned.ok()) {
    pinned_sums = *std::move(pinned);
    TESSERA_LOG(DEBUG, "rank {}: {} bytes for sums are pinned after {}", rank.value(), size_bytes,
                absl::FormatDuration(SteadyNow() - began));
  } else {
    TESSERA_LOG(WARNING, "what {} reduces is copied in pieces to memory that is not pinned: {}",
                std::string(device->name()), pinned.status().ToString());
  }
}

absl::StatusOr<ExecutorMemory> ExecutorMemory::FromSetup(Packet packet,
                                                         const MakeRankDevice& make_device) {
  ASSIGN_OR_RETURN(const v1::ExecutorSetup setup, ReadSetup(packet));
  ExecutorMemory memory;
  memory.job_id = setup.job().job_id();
  memory.save_roots = {setup.job().save_roots().begin(), setup.job().save_roots().end()};
  memory.rank = Rank(setup.rank());
  ASSIGN_OR_RETURN(const ModelSpec model, DecodeModel(setup.job().model()));
  ASSIGN_OR_RETURN(memory.config, DecodeJobConfig(setup.job().config()));
  // The worker has checked it, too. Sizes that are mapped below are computed from it.
  RETURN_IF_ERROR(ValidateJobConfig(memory.config, model));
  const int world_size = memory.config.world_size;
  memory.data_host = setup.data_host();
  ASSIGN_OR_RETURN(memory.topology, TopologyOf(setup.job(), world_size));
  if (setup.rank() < 0 || setup.rank() >= world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("executor setup: rank ", setup.rank(), " of ", world_size));
  }
  ASSIGN_OR_RETURN(memory.layout, LayOut(model, memory.config));
  ASSIGN_OR_RETURN(memory.plan, JobMemory::Create(memory.layout, memory.config));
  RETURN_IF_ERROR(MapHostRegions(packet, &memory));
  absl::string_view name = packet.bytes;
  // The prefix tells whether this executor shares its device's memory by name.
  memory.in_process = absl::ConsumePrefix(&name, kSetupInProcessPacket);
  const absl::StatusOr<DeviceName> device = ParseDeviceName(absl::StripPrefix(name, kSetupPacket));
  if (!device.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("executor setup: a packet that says '", packet.bytes, "'"));
  }
  ASSIGN_OR_RETURN(memory.device, make_device(*device));
  const size_t gradients_of_rank = memory.device->is_separate() ? 2 : 1;
  const size_t num_ranks = memory.topology.NumRanks(memory.host());
  ASSIGN_OR_RETURN(ParameterPlan parameters,
                   ParameterPlan::Of(memory.layout, memory.config, memory.plan, memory.topology,
                                     memory.device->is_separate() && !memory.in_process));
  const size_t num_slots = parameters.num_slots();
  // Indices of descriptors below come from this count.
  if (packet.fds.size() != kFixedFds + num_ranks * gradients_of_rank + num_slots) {
    return absl::InvalidArgumentError(absl::StrCat("executor setup: ", packet.fds.size(),
                                                   " descriptors for ", num_ranks, " ranks on ",
                                                   memory.device->name()));
  }
  if (memory.config.shard_group_size > 0) memory.device->PutGathersFirst();
  RETURN_IF_ERROR(MapDeviceRegions(packet, std::move(parameters), &memory));
  RETURN_IF_ERROR(MapGradients(packet, &memory));
  // Now, and not page by page in the first step.
  RETURN_IF_ERROR(TakeHostMemory(packet, memory));
  return memory;
}

}  // namespace tessera

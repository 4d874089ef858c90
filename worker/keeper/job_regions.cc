#include "worker/keeper/job_regions.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "job/job_codec.h"
#include "job/job_layout.h"
#include "proto/executor.pb.h"
#include "shm/fd_passing.h"
#include "shm/parameter_plan.h"
#include "shm/shared_file.h"
#include "worker/comm/shm/shm_communicator.h"
#include "worker/device/rank_device.h"
#include "worker/executor/executor_memory.h"

namespace tessera {
namespace {

// Of an executor's setup, in addition to the ranks' gradients.
constexpr size_t kSetupFds = 6;
static_assert(kSetupFds + kMaxLocalRanks <= kMaxPacketFds, "a setup does not fit in a packet");

// What is there, not what is booked: pages that were never written do not count.
int64_t ResidentBytes(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 ? static_cast<int64_t>(info.st_blocks) * 512 : 0;
}

absl::StatusOr<UniqueFd> Duplicate(int fd) {
  UniqueFd own(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) return ErrnoStatus(errno, "duplicate a descriptor of a job's memory");
  return own;
}

// Nothing is mapped: a state of any size costs the worker the piece that is read (docs/adr/0028).
class FileReader : public MemoryReader {
 public:
  explicit FileReader(UniqueFd fd) : fd_(std::move(fd)) {}

  absl::Status Read(void* to, int64_t offset_bytes, int64_t size_bytes) override {
    char* into = static_cast<char*>(to);
    while (size_bytes > 0) {
      const ssize_t got = pread(fd_.get(), into, size_bytes, offset_bytes);
      if (got < 0 && errno == EINTR) continue;
      // 0 bytes: the file is shorter than the job's arithmetic says.
      if (got <= 0) return ErrnoStatus(got < 0 ? errno : EIO, "a rank's state");
      into += got;
      offset_bytes += got;
      size_bytes -= got;
    }
    return absl::OkStatus();
  }

 private:
  const UniqueFd fd_;
};

// Whether a worker of this memory can hold so many of a job's ranks.
absl::Status CheckRanksOfGpu(int num_ranks, const std::string& why_not_shared) {
  if (kSetupFds + 2 * num_ranks > kMaxPacketFds) {
    return absl::InvalidArgumentError(absl::StrCat(
        num_ranks, " ranks on one GPU: ", (kMaxPacketFds - kSetupFds) / 2, " are the most"));
  }
  if (why_not_shared.empty() || num_ranks == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(num_ranks, " ranks of a job on one GPU, whose memory their processes cannot ",
                   "share: 1 is the most: ", why_not_shared));
}

// Of a rank, as labels name them; "": what its ranks share.
std::string PartOf(int rank) { return absl::StrCat(rank); }
constexpr char kShared[] = "";

}  // namespace

// Where a job's regions come from: they are made, or were held since an earlier process made them.
class JobRegions::Source {
 public:
  Source(std::string job_id, JobDescriptors* held) : job_id_(std::move(job_id)), held_(held) {}

  bool makes() const { return held_ == nullptr; }
  // Of host memory. Each part's are requested in one order.
  absl::StatusOr<SharedRegion> Take(const std::string& part, absl::string_view what,
                                    int64_t size_bytes) {
    const std::string label = LabelOf(part, what);
    // Restored regions are matched by their order. Their sizes and seals are checked again.
    if (makes()) return SharedRegion::Create(label, size_bytes);
    std::vector<UniqueFd>& fds = (*held_)[part];
    const size_t index = next_[part]++;
    if (index >= fds.size()) return absl::InvalidArgumentError(absl::StrCat("no region ", label));
    return SharedRegion::Adopt(label, std::move(fds[index]), size_bytes);
  }
  // Of the device, or of the host if there is none.
  absl::StatusOr<UniqueFd> Take(DeviceMemory* device_memory, const std::string& part,
                                absl::string_view what, int64_t size_bytes) {
    if (device_memory != nullptr) return device_memory->Create(LabelOf(part, what), size_bytes);
    ASSIGN_OR_RETURN(SharedRegion region, Take(part, what, size_bytes));
    return std::move(region).TakeFd();
  }

 private:
  std::string LabelOf(const std::string& part, absl::string_view what) const {
    return absl::StrCat(job_id_, part.empty() ? "" : "/", part, "/", what);
  }

  const std::string job_id_;
  JobDescriptors* const held_;
  std::map<std::string, size_t> next_;
};

absl::StatusOr<LocalRanks> LocalRanksOf(const v1::Job& job, const std::string& worker_id) {
  std::vector<std::string> workers(job.placements_size());
  for (const v1::RankPlacement& placement : job.placements()) {
    // The placements come over the wire. Each rank must have exactly one.
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

absl::StatusOr<JobRegions::RankRegions> JobRegions::MakeRank(int rank, const JobMemory& plan,
                                                             DeviceMemory* device_memory,
                                                             bool state_on_host, Source* source) {
  const std::string part = PartOf(rank);
  ASSIGN_OR_RETURN(SharedRegion gradients,
                   source->Take(part, "gradients", plan.gradient_region_bytes()));
  ASSIGN_OR_RETURN(UniqueFd state, source->Take(state_on_host ? nullptr : device_memory, part,
                                                "state", plan.state_region_bytes()));
  UniqueFd device_gradients;
  if (device_memory != nullptr) {
    ASSIGN_OR_RETURN(device_gradients, source->Take(device_memory, part, "device-gradients",
                                                    plan.device_gradient_region_bytes()));
  }
  ASSIGN_OR_RETURN(SharedRegion control, source->Take(part, "control", sizeof(ControlPage)));
  // Writable: where an executor died before it told its trainer, the keeper does.
  ASSIGN_OR_RETURN(Mapping mapping, Mapping::CreateWhole(control.fd(), Access::kReadWrite));
  ControlPage* page = reinterpret_cast<ControlPage*>(mapping.data());
  // Another daemon's build may have laid the page out otherwise.
  if (!source->makes() && page->version != kControlPageVersion)
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, ": its control page has version ",
                                                   page->version, ", not ", kControlPageVersion));
  page->version = kControlPageVersion;
  const DeviceName device = device_memory == nullptr ? DeviceName() : device_memory->device();
  page->device = device.number;
  page->device_uuid = device.uuid;
  ASSIGN_OR_RETURN(SharedRegion flight, source->Take(part, "flight", sizeof(FlightRing)));
  if (source->makes()) {
    // Formatted once: records from before a restart stay readable.
    ASSIGN_OR_RETURN(const Mapping ring, Mapping::CreateWhole(flight.fd(), Access::kReadWrite));
    FormatFlightRing(reinterpret_cast<FlightRing*>(ring.data()));
  }
  // The keeper only reads it: a broken executor cannot be broken further by its reader.
  ASSIGN_OR_RETURN(Mapping flight_mapping, Mapping::CreateWhole(flight.fd(), Access::kReadOnly));
  RETURN_IF_ERROR(CheckFlightRing(*reinterpret_cast<const FlightRing*>(flight_mapping.data())));
  return RankRegions{std::move(gradients),     std::move(state),  std::move(device_gradients),
                     std::move(control),       std::move(flight), std::move(mapping),
                     std::move(flight_mapping)};
}

absl::StatusOr<JobRegions> JobRegions::Create(const v1::Job& job, const LocalRanks& local,
                                              DeviceMemory* device_memory, MemoryBudget* budget) {
  Source source(job.job_id(), nullptr);
  return Make(job, local, device_memory, budget, &source);
}

absl::StatusOr<JobRegions> JobRegions::Restore(const v1::Job& job, const LocalRanks& local,
                                               MemoryBudget* budget, JobDescriptors held) {
  Source source(job.job_id(), &held);
  return Make(job, local, /*device_memory=*/nullptr, budget, &source);
}

std::map<std::string, std::vector<int>> JobRegions::Descriptors() const {
  std::map<std::string, std::vector<int>> parts;
  parts[kShared] = {parameters_.get(), group_.fd()};
  for (int rank = local_.first(); rank < local_.first() + local_.count(); ++rank) {
    const RankRegions& own = Of(Rank(rank));
    parts[PartOf(rank)] = {own.gradients.fd(), own.state.get(), own.control.fd(), own.flight.fd()};
  }
  return parts;
}

absl::StatusOr<JobRegions> JobRegions::Make(const v1::Job& job, const LocalRanks& local,
                                            DeviceMemory* device_memory, MemoryBudget* budget,
                                            Source* source) {
  ASSIGN_OR_RETURN(const ModelSpec model, DecodeModel(job.model()));
  ASSIGN_OR_RETURN(JobConfig config, DecodeJobConfig(job.config()));
  // The coordinator has checked it as well. Sizes of memory are computed from it below.
  RETURN_IF_ERROR(ValidateJobConfig(config, model));
  if (local.topology.world_size() != config.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(local.topology.world_size(), " ranks of ",
                                                   config.world_size, " have a place"));
  }
  const std::string why_not_shared =
      device_memory == nullptr ? "" : device_memory->why_not_shared();
  if (device_memory != nullptr) RETURN_IF_ERROR(CheckRanksOfGpu(local.count(), why_not_shared));
  const bool shares_gpu = device_memory != nullptr && why_not_shared.empty();
  const bool state_on_host = !shares_gpu || config.cpu_offload;
  if (!state_on_host && config.shard_check_interval_steps > 0) {
    return absl::InvalidArgumentError(
        "shard_check_interval_steps: shards are checked in the host's memory: set cpu_offload");
  }
  ASSIGN_OR_RETURN(ModelLayout layout, LayOut(model, config));
  ASSIGN_OR_RETURN(const JobMemory plan, JobMemory::Create(layout, config));
  ASSIGN_OR_RETURN(const int64_t channel_bytes,
                   ShmCommunicator::RequiredBytes(local.count(), ShmCommunicator::Options()));
  ASSIGN_OR_RETURN(const ParameterPlan of_parameters,
                   ParameterPlan::Of(layout, config, plan, local.topology,
                                     /*on_gpu=*/shares_gpu));
  MemoryBudget::Reservation reserved;
  if (budget != nullptr) {
    // Booked before anything is made, so that two jobs cannot both count on the same memory.
    const HostMemory memory = plan.host_memory(device_memory == nullptr, state_on_host);
    // The same arithmetic as the coordinator's placement (docs/adr/0070).
    const int64_t bytes = channel_bytes + memory.BytesOf(local.count());
    if (source->makes()) {
      ASSIGN_OR_RETURN(reserved, budget->Reserve(absl::StrCat("job '", job.job_id(), "'"), bytes));
    } else {
      // Its pages are in use already, so only the budget is told.
      reserved = budget->ReserveTaken(bytes);
    }
  }
  ASSIGN_OR_RETURN(UniqueFd parameters, source->Take(device_memory, kShared, "parameters",
                                                     of_parameters.region_bytes()));
  ASSIGN_OR_RETURN(
      SharedRegion group,
      source->Take(kShared, "group", ChannelOffsetBytes(plan, local.count()) + channel_bytes));
  JobRegions regions(std::move(parameters), std::move(group));
  ASSIGN_OR_RETURN(regions.group_mapping_,
                   Mapping::CreateWhole(regions.group_.fd(), Access::kReadWrite));
  GroupPage* const group_page = regions.group();
  // As for the control pages.
  if (!source->makes() && group_page->version != kGroupPageVersion)
    return absl::InvalidArgumentError(absl::StrCat("the page that its ranks share has version ",
                                                   group_page->version, ", not ",
                                                   kGroupPageVersion));
  group_page->version = kGroupPageVersion;
  for (int slot = 0; slot < of_parameters.num_slots(); ++slot) {
    ASSIGN_OR_RETURN(UniqueFd memory,
                     source->Take(device_memory, kShared, absl::StrCat("slot-", slot),
                                  of_parameters.slot_bytes()));
    regions.slots_.push_back(std::move(memory));
  }
  for (int rank = local.first(); rank < local.first() + local.count(); ++rank) {
    ASSIGN_OR_RETURN(RankRegions of_rank,
                     MakeRank(rank, plan, device_memory, state_on_host, source));
    regions.ranks_.push_back(std::move(of_rank));
  }
  if (device_memory != nullptr) {
    regions.device_memory_ = device_memory;
    regions.device_bytes_ = {of_parameters.total_bytes() / local.count(),
                             plan.device_gradient_region_bytes(),
                             state_on_host ? 0 : plan.state_region_bytes()};
  }
  // Until here an error gives the reservation back.
  regions.memory_ = std::move(reserved);
  regions.why_not_shared_ = why_not_shared;
  regions.state_on_host_ = state_on_host;
  regions.channel_offset_bytes_ = ChannelOffsetBytes(plan, local.count());
  regions.state_bytes_ = plan.state_region_bytes();
  regions.num_parameters_ = plan.num_parameters();
  regions.local_ = local;
  regions.layout_ = std::move(layout);
  regions.config_ = std::move(config);
  return regions;
}

absl::StatusOr<std::unique_ptr<MemoryReader>> JobRegions::OpenState(Rank rank) const {
  const int state = Of(rank).state.get();
  if (!state_on_host_) return device_memory_->OpenReader(state, state_bytes_);
  // Its own descriptor: the reader may outlive the job.
  ASSIGN_OR_RETURN(UniqueFd own, Duplicate(state));
  return std::make_unique<FileReader>(std::move(own));
}

absl::StatusOr<std::unique_ptr<MemoryReader>> JobRegions::OpenGroup() const {
  ASSIGN_OR_RETURN(UniqueFd own, Duplicate(group_.fd()));
  return std::make_unique<FileReader>(std::move(own));
}

ControlPage* JobRegions::control(Rank rank) const {
  return reinterpret_cast<ControlPage*>(Of(rank).control_mapping.data());
}

const FlightRing& JobRegions::flight(Rank rank) const {
  return *reinterpret_cast<const FlightRing*>(Of(rank).flight_mapping.data());
}

absl::Status JobRegions::CheckHasValues() const {
  const GroupPage& page = *group();
  for (int i = 0; i < local_.count(); ++i) {
    if (page.ranks[i].lacks_values.load() != 0)
      return absl::UnavailableError("its ranks are being rebuilt from those of another worker");
  }
  if (page.initialized.load(std::memory_order_acquire) != 0) return absl::OkStatus();
  return absl::FailedPreconditionError("the job has no values yet");
}

GroupPage* JobRegions::group() const { return reinterpret_cast<GroupPage*>(group_mapping_.data()); }

RankMemoryBytes JobRegions::Measure(Rank rank) const {
  const RankRegions& regions = Of(rank);
  const int64_t gradients = ResidentBytes(regions.gradients.fd());
  const int64_t state = ResidentBytes(regions.state.get());
  if (device_memory_ == nullptr) {
    return {ResidentBytes(parameters_.get()) / static_cast<int64_t>(ranks_.size()), gradients,
            state};
  }
  return {device_bytes_.parameters, gradients + device_bytes_.gradients,
          state_on_host_ ? state : device_bytes_.optimizer};
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
  setup.set_protocol(kProtocol);
  setup.set_version(kVersion);
  // As memory, since it may be longer than a packet.
  const std::string bytes = setup.SerializeAsString();
  ASSIGN_OR_RETURN(const SharedRegion message,
                   SharedRegion::Create(job.job_id() + "/setup", bytes.size()));
  {
    ASSIGN_OR_RETURN(const Mapping mapping, Mapping::CreateWhole(message.fd(), Access::kReadWrite));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(mapping.data()));
  }
  control(rank)->version = kControlPageVersion;  // The trainer can write there.
  const RankRegions& own = Of(rank);
  const int own_fds[kSetupFds] = {message.fd(),    parameters_.get(), group_.fd(),
                                  own.state.get(), own.control.fd(),  own.flight.fd()};
  // In the order that proto/executor.proto gives, by which the executor finds them.
  std::vector<int> fds(std::begin(own_fds), std::end(own_fds));
  for (const RankRegions& regions : ranks_) fds.push_back(regions.gradients.fd());
  for (const RankRegions& regions : ranks_) {
    if (regions.device_gradients.valid()) fds.push_back(regions.device_gradients.get());
  }
  for (const UniqueFd& slot : slots_) fds.push_back(slot.get());
  const DeviceName device = device_memory_ == nullptr ? DeviceName() : device_memory_->device();
  const char* const packet = why_not_shared_.empty() ? kSetupPacket : kSetupInProcessPacket;
  return SendPacket(socket, absl::StrCat(packet, ToText(device)), fds);
}

absl::StatusOr<std::vector<UniqueFd>> JobRegions::TrainerFds(Rank rank) const {
  const RankRegions& own = Of(rank);
  std::vector<UniqueFd> fds;
  const auto give = [&](int fd, bool for_reading) -> absl::Status {
    // A read-only descriptor: a trainer must not write parameters that all ranks read.
    ASSIGN_OR_RETURN(fds.emplace_back(), for_reading ? ReopenForReading(fd) : Duplicate(fd));
    return absl::OkStatus();
  };
  const bool parameters_on_host = device_memory_ == nullptr;
  RETURN_IF_ERROR(give(parameters_.get(), parameters_on_host));
  // Its own, never its peers': only executors read those.
  RETURN_IF_ERROR(give(own.gradients.fd(), false));
  RETURN_IF_ERROR(give(own.control.fd(), false));
  if (own.device_gradients.valid()) RETURN_IF_ERROR(give(own.device_gradients.get(), false));
  for (const UniqueFd& slot : slots_) RETURN_IF_ERROR(give(slot.get(), parameters_on_host));
  return fds;
}

void JobRegions::AbortCollectives(Epoch epoch, const absl::Status& reason) const {
  // Epochs begin at 1: before the first there is no collective.
  if (epoch.value() < 1) return;
  ShmCommunicator::Options options;
  options.base = group_mapping_.data() + channel_offset_bytes_;
  options.bytes = group_mapping_.size_bytes() - channel_offset_bytes_;
  options.size = local_.count();
  options.epoch = static_cast<uint32_t>(epoch.value());
  // The arguments are this object's own, so it cannot fail.
  (void)ShmCommunicator::AbortEpoch(options, reason);
}

}  // namespace tessera

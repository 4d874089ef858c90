#include "worker/executor/epoch_communicators.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "worker/engine/made_saves.h"

namespace tessera {

namespace {

// The name of the training stream whose work the row does.
absl::string_view StreamOf(Row row) { return row == Row::kGather ? "unshard" : "post-backward"; }

}  // namespace

absl::Status EpochCommunicators::Open() {
  RETURN_IF_ERROR(RenewKernels());
  if (memory_->device->is_separate() && memory_->spans_workers()) FindDirectWay();
  return absl::OkStatus();
}

absl::Status EpochCommunicators::RenewKernels() {
  if (!memory_->device->is_separate()) return absl::OkStatus();
  RETURN_IF_ERROR(RenewKernelsOf(Row::kReduce, &reduce_kernels_));
  if (!memory_->spans_workers()) return absl::OkStatus();
  return RenewKernelsOf(Row::kGather, &gather_kernels_);
}

absl::Status EpochCommunicators::RenewKernelsOf(Row row,
                                                std::unique_ptr<RankKernels>* kernels) const {
  // Kernels whose work failed in an earlier epoch are not used again.
  if (*kernels != nullptr && (*kernels)->Finish().ok()) return absl::OkStatus();
  kernels->reset();
  RankDevice::KernelOptions options;
  options.state_on_host = memory_->state_is_addressable();
  options.max_count = memory_->LargestShard();
  options.stream = StreamOf(row);
  ASSIGN_OR_RETURN(*kernels, memory_->device->CreateKernels(options));
  return absl::OkStatus();
}

absl::StatusOr<std::string> EpochCommunicators::Listen(Epoch epoch) {
  ASSIGN_OR_RETURN(
      meshes_, EpochMeshes::Listen(memory_->topology, memory_->rank, epoch, memory_->data_host));
  return meshes_->address();
}

absl::Status EpochCommunicators::ExchangeWith(int rank, absl::Span<const PeerMesh::Part> sends,
                                              absl::Span<const PeerMesh::Part> receives) {
  if (files_between_hosts_ == nullptr)
    return absl::FailedPreconditionError("the ranks are on one worker, or in no epoch");
  // The files' patience: the source may be giving other ranks their shards first.
  return files_between_hosts_->ExchangeWith(rank, sends, receives, TimeoutOf(Row::kFiles));
}

void EpochCommunicators::Leave() {
  // Communicators end before what they point at.
  files_between_hosts_ = nullptr;  // It points into files_.
  files_.reset();
  reduce_.reset();
  gather_.reset();
  of_host_.reset();
  meshes_.reset();
}

absl::StatusOr<std::unique_ptr<ShmCommunicator>> EpochCommunicators::JoinHost(Epoch epoch,
                                                                              Row row) {
  const RankTopology& topology = memory_->topology;
  const int rank = static_cast<int>(memory_->rank.value()), host = memory_->host();
  ShmCommunicator::Options shm;
  const int64_t channel_bytes = ChannelOffsetBytes(memory_->plan, memory_->num_local_ranks());
  shm.base = memory_->group.data() + channel_bytes;
  shm.bytes = memory_->group.size_bytes() - channel_bytes;
  shm.rank = topology.LocalIndex(rank);
  shm.size = topology.NumRanks(host);
  shm.channel = static_cast<int>(row);
  shm.epoch = static_cast<uint32_t>(epoch.value());
  shm.timeout = TimeoutOf(row);
  shm.first_rank = topology.FirstRank(host);
  shm.group_size = topology.world_size();
  shm.kernels = KernelsOf(row);
  return ShmCommunicator::Create(shm);
}

void EpochCommunicators::FindDirectWay() {
  // Several ranks of a GPU share its parameters, and what is offloaded is not on it.
  // The same on all ranks of a host, but not on all hosts: AgreeOnWay decides for all.
  const bool possible = memory_->device->is_separate() && memory_->spans_workers() &&
                        memory_->topology.NumRanks(memory_->host()) == 1 &&
                        !memory_->state_is_addressable() && make_direct_ != nullptr;
  if (!possible) return;
  auto direct = make_direct_(memory_->device.get());
  if (direct.ok()) {
    direct_ = *std::move(direct);
  } else {
    TESSERA_LOG(WARNING, "data from {} to other workers goes through host memory: {}",
                std::string(memory_->device->name()), direct.status().ToString());
  }
}

absl::StatusOr<EpochCommunicators::Way> EpochCommunicators::AgreeOnWay(int64_t step,
                                                                       Communicator* control) {
  struct OfRank {
    Way way;
    uint8_t has_slots, has_values;
    SavesOfStep saves;
    DirectPlace place;
  };
  GroupPage* group = memory_->group_page();
  // Asked in each epoch: a registration that failed before is not tried again.
  const absl::Status registers = direct_ == nullptr ? absl::OkStatus() : direct_->CanRegister();
  const OfRank mine = {direct_ == nullptr ? Way::kByHost
                       : registers.ok()   ? Way::kDirectAndRegistered
                                          : Way::kDirect,
                       static_cast<uint8_t>(memory_->parameters.plan.num_slots() > 0),
                       static_cast<uint8_t>(memory_->has_values()), SavesOf(group->saves, step),
                       direct_ == nullptr ? DirectPlace() : direct_->place()};
  std::vector<OfRank> all(control->size());
  // Every rank sees the same answers, so all choose the same way.
  // One exchange for all that ranks have to know of each other before the first operation.
  RETURN_IF_ERROR(control->AllGather(&mine, all.data(), sizeof(mine)));
  job_has_values_ =
      std::any_of(all.begin(), all.end(), [](const OfRank& rank) { return rank.has_values != 0; });
  // The ranks of one host may have noted a save when those of another had not come to it.
  for (const OfRank& rank : all)
    for (int i = 0; i < kMaxMadeSaves && rank.saves[i] != 0; ++i)
      NoteSave(&group->saves, step, i, rank.saves[i]);
  slots_.reset();
  // If some rank has slots, the order of gathers depends on them, so all ranks keep this table.
  if (std::any_of(all.begin(), all.end(), [](const OfRank& rank) { return rank.has_slots != 0; })) {
    ASSIGN_OR_RETURN(slots_,
                     ParameterPlan::InSlots(memory_->layout, memory_->config, memory_->plan));
  }
  std::vector<DirectPlace> places;
  for (const OfRank& rank : all) places.push_back(rank.place);
  if (const auto shared = RanksOfOneDevice(places); shared.has_value()) {
    TESSERA_LOG(WARNING, "ranks send each other data through host memory: {}",
                DescribeShared(*shared, places));
    return Way::kByHost;
  }
  // All ranks use one way, so the rank that can do least decides.
  const auto least = std::min_element(
      all.begin(), all.end(), [](const OfRank& a, const OfRank& b) { return a.way < b.way; });
  if (least->way == Way::kDirectAndRegistered)
    TESSERA_LOG(INFO, "ranks send each other data directly from GPU to GPU");
  if (least->way == Way::kDirect) {
    TESSERA_LOG(INFO,
                "ranks send each other data directly from GPU to GPU, not registered: rank {} "
                "cannot{}",
                least - all.begin(), registers.ok() ? "" : "; here: " + registers.ToString());
  }
  return least->way;
}

absl::StatusOr<std::unique_ptr<Communicator>> EpochCommunicators::JoinDirect(Joined joined, Row row,
                                                                             Way way) {
  DirectCommunicators::JoinOptions options;
  options.control = joined.communicator.get();
  options.aborted = std::move(joined.aborted);
  options.stream = StreamOf(row);
  options.timeout = TimeoutOf(row);
  options.max_count = memory_->LargestShard();
  options.registers = way == Way::kDirectAndRegistered;
  // Both rows gather parameters, in one precision or the other. What is reduced is sent from the
  // rank's own gradients; its sums are written by kernels.
  const MappedParameters& parameters = memory_->parameters;
  options.regions = {{parameters.region.data(), parameters.region.size_bytes()}};
  for (const Buffer& slot : parameters.slots) {
    if (!slot.empty()) options.regions.push_back({slot.data(), slot.size_bytes()});
  }
  if (row == Row::kReduce) {
    const int own = memory_->topology.LocalIndex(static_cast<int>(memory_->rank.value()));
    const Buffer& gradients = memory_->device_gradients[own];
    options.regions.push_back({gradients.data(), gradients.size_bytes()});
    options.max_slice_bytes = memory_->LargestShardBytes();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> direct, direct_->Join(options));
  return JoinControlAndDirect(std::move(joined.communicator), std::move(direct));
}

absl::Status EpochCommunicators::Join(Epoch epoch, const v1::ExecutorStart& start) {
  // Before joining: what failed in an earlier epoch must not fail this one.
  RETURN_IF_ERROR(RenewKernels());
  // The rows are joined in one order on all ranks: each join waits for the peers'.
  ASSIGN_OR_RETURN(Joined reduce, JoinRow(epoch, Row::kReduce, start));
  // A row of its own: a background save meets its ranks while training's collectives go on.
  ASSIGN_OR_RETURN(Joined files, JoinRow(epoch, Row::kFiles, start));
  files_ = std::move(files.communicator);
  files_between_hosts_ = files.between_hosts;
  if (!memory_->spans_workers()) {
    reduce_ = std::move(reduce.communicator);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(Joined gather, JoinRow(epoch, Row::kGather, start));
  ASSIGN_OR_RETURN(of_host_, JoinHost(epoch, Row::kHost));
  ASSIGN_OR_RETURN(const Way way, AgreeOnWay(start.resume_step(), reduce.communicator.get()));
  moves_directly_ = way != Way::kByHost;
  if (!moves_directly_) {
    reduce_ = std::move(reduce.communicator);
    gather_ = std::move(gather.communicator);
    return absl::OkStatus();
  }
  // In one order on all ranks: the library's joins wait for each other, too.
  ASSIGN_OR_RETURN(reduce_, JoinDirect(std::move(reduce), Row::kReduce, way));
  ASSIGN_OR_RETURN(gather_, JoinDirect(std::move(gather), Row::kGather, way));
  return absl::OkStatus();
}

absl::StatusOr<EpochCommunicators::Joined> EpochCommunicators::JoinRow(
    Epoch epoch, Row row, const v1::ExecutorStart& start) {
  ASSIGN_OR_RETURN(std::unique_ptr<ShmCommunicator> local, JoinHost(epoch, row));
  // The worker ends the epoch in shared memory, while this thread reads none of its commands.
  // It is called only while the communicator lives.
  const auto ended = [local = local.get()] { return local->aborted(); };
  if (!memory_->spans_workers()) return Joined{std::move(local), nullptr, ended};
  if (meshes_ == nullptr) return absl::InternalError("the epoch was not prepared");
  HostsCommunicator::Options options;
  options.topology = memory_->topology;
  options.rank = static_cast<int>(memory_->rank.value());
  options.local = std::move(local);
  options.timeout = TimeoutOf(row);
  options.kernels = KernelsOf(row);
  if (options.kernels != nullptr) options.device = memory_->device.get();
  ASSIGN_OR_RETURN(
      options.mesh,
      meshes_->Connect(row, start, SteadyNow() + memory_->config.collective_timeout, ended));
  auto communicator = std::make_unique<HostsCommunicator>(std::move(options));
  // The files' row is also used between two ranks alone, for rebuilt shards.
  HostsCommunicator* between_hosts = communicator.get();
  return Joined{std::move(communicator), between_hosts, ended};
}

}  // namespace tessera

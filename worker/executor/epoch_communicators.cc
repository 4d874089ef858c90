#include "worker/executor/epoch_communicators.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/comm/hosts/hosts_communicator.h"

namespace tessera {

absl::Status EpochCommunicators::Open() {
  if (!memory_->device->is_separate()) return absl::OkStatus();
  RankDevice::KernelOptions options;
  options.state_on_host = memory_->state_is_addressable();
  options.max_count = memory_->LargestShard();
  ASSIGN_OR_RETURN(reduce_kernels_, memory_->device->CreateKernels(options));
  if (!memory_->spans_workers()) return absl::OkStatus();
  ASSIGN_OR_RETURN(gather_kernels_, memory_->device->CreateKernels(options));
  FindDirectWay();
  return absl::OkStatus();
}

absl::StatusOr<std::string> EpochCommunicators::Listen(Epoch epoch) {
  ASSIGN_OR_RETURN(
      meshes_, EpochMeshes::Listen(memory_->topology, memory_->rank, epoch, memory_->data_host));
  return meshes_->address();
}

void EpochCommunicators::Leave() {
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
  shm.base = memory_->group.data() + ChannelOffsetBytes(memory_->plan);
  shm.bytes = memory_->group.size_bytes() - ChannelOffsetBytes(memory_->plan);
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
  const bool possible = memory_->device->is_separate() && memory_->spans_workers() &&
                        memory_->topology.NumRanks(memory_->host()) == 1 &&
                        !memory_->state_is_addressable() && make_direct_ != nullptr;
  if (!possible) return;
  auto direct = make_direct_(memory_->device.get());
  if (direct.ok()) {
    direct_ = *std::move(direct);
  } else {
    TESSERA_LOG(WARNING, "what {} sends to other workers goes by the processor's memory: {}",
                std::string(memory_->device->name()), direct.status().ToString());
  }
}

absl::StatusOr<bool> EpochCommunicators::AllAreDirect(Communicator* control) {
  constexpr uint8_t kIsDirect = 1, kHasSlots = 2;
  const bool has_slots = memory_->parameters.plan.num_slots() > 0;
  const uint8_t mine = (direct_ != nullptr ? kIsDirect : 0) | (has_slots ? kHasSlots : 0);
  std::vector<uint8_t> all(control->size());
  RETURN_IF_ERROR(control->AllGather(&mine, all.data(), sizeof(mine)));
  slots_.reset();
  if (std::any_of(all.begin(), all.end(), [](uint8_t of) { return (of & kHasSlots) != 0; })) {
    ASSIGN_OR_RETURN(slots_,
                     ParameterPlan::InSlots(memory_->layout, memory_->config, memory_->plan));
  }
  return std::all_of(all.begin(), all.end(), [](uint8_t of) { return (of & kIsDirect) != 0; });
}

absl::StatusOr<std::unique_ptr<Communicator>> EpochCommunicators::JoinDirect(Joined joined,
                                                                             Row row) {
  DirectCommunicators::JoinOptions options;
  options.control = joined.communicator.get();
  options.aborted = std::move(joined.aborted);
  options.timeout = TimeoutOf(row);
  options.max_count = memory_->LargestShard();
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> direct, direct_->Join(options));
  return JoinControlAndDirect(std::move(joined.communicator), std::move(direct));
}

absl::Status EpochCommunicators::Join(Epoch epoch, const v1::ExecutorStart& start) {
  ASSIGN_OR_RETURN(Joined reduce, JoinRow(epoch, Row::kReduce, start));
  ASSIGN_OR_RETURN(Joined files, JoinRow(epoch, Row::kFiles, start));
  files_ = std::move(files.communicator);
  if (!memory_->spans_workers()) {
    reduce_ = std::move(reduce.communicator);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(Joined gather, JoinRow(epoch, Row::kGather, start));
  ASSIGN_OR_RETURN(of_host_, JoinHost(epoch, Row::kHost));
  ASSIGN_OR_RETURN(const bool direct, AllAreDirect(reduce.communicator.get()));
  if (!direct) {
    reduce_ = std::move(reduce.communicator);
    gather_ = std::move(gather.communicator);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(reduce_, JoinDirect(std::move(reduce), Row::kReduce));
  ASSIGN_OR_RETURN(gather_, JoinDirect(std::move(gather), Row::kGather));
  return absl::OkStatus();
}

absl::StatusOr<EpochCommunicators::Joined> EpochCommunicators::JoinRow(
    Epoch epoch, Row row, const v1::ExecutorStart& start) {
  ASSIGN_OR_RETURN(std::unique_ptr<ShmCommunicator> local, JoinHost(epoch, row));
  // The worker ends the epoch in shared memory, while this thread reads none of its commands.
  const auto ended = [local = local.get()] { return local->aborted(); };
  if (!memory_->spans_workers()) return Joined{std::move(local), ended};
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
      meshes_->Connect(row, start, absl::Now() + memory_->config.collective_timeout, ended));
  return Joined{std::make_unique<HostsCommunicator>(std::move(options)), ended};
}

}  // namespace tessera

#include "worker/comm/nccl/nccl_processes.h"

#include <stdlib.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/nccl/fake_nccl_api.h"
#include "worker/comm/nccl/nccl_direct.h"
#include "worker/comm/nccl/staged_communicator.h"
#include "worker/comm/shm/shm_test_group.h"
#include "worker/device/cuda/fake_slice_kernels.h"
#include "worker/device/cuda/gpu_kernels.h"

namespace tessera {
namespace {

constexpr int64_t kMaxMeasured = 1 << 20;

using Body = std::function<absl::Status(const NcclCommunicator::Options&, ShmCommunicator*)>;

absl::Status RunRank(const NcclProcessOptions& options, const SharedMapping& mapping, int rank,
                     const Body& body) {
  GroupOptions joining;  // Which may take longer than a test allows its operations.
  joining.size = options.group.size;
  ShmCommunicator::Options control_options = ShmOptions(joining, mapping);
  control_options.rank = rank;
  control_options.base = mapping.MapAgain();
  ASSIGN_OR_RETURN(const std::unique_ptr<ShmCommunicator> control,
                   ShmCommunicator::Create(control_options));
  const absl::StatusOr<NcclMachine> machine = options.machine(rank, options.group.size);
  if (!machine.ok()) {
    control->Abort(machine.status());
    return machine.status();
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<NcclThread> thread, NcclThread::Create());
  NcclCommunicator::Options own;
  own.nccl = machine->nccl;
  own.thread = thread.get();
  own.device = machine->device;
  own.kernels = machine->kernels;
  own.place = machine->place;
  own.control = control.get();
  own.control_aborted = [control = control.get()] { return control->aborted(); };
  own.timeout = options.timeout;
  own.staging_bytes = 16 << 10;  // Small, so that tests have many pieces.
  own.library_sums = options.library_sums;
  return body(own, control.get());
}

std::vector<absl::Status> RunAll(
    const NcclProcessOptions& options,
    const std::function<absl::Status(const SharedMapping&, int)>& rank_body) {
  const SharedMapping mapping(ShmBytes(options.group));
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < options.group.size; ++rank)
    ranks.emplace_back([&, rank] { return rank_body(mapping, rank); });
  std::vector<absl::Status> statuses;
  for (RankProcess& rank : ranks) statuses.push_back(rank.Join());
  return statuses;
}

}  // namespace

NcclPlacement PlaceNcclRank(int rank, int size, int num_devices, int nccl_version) {
  if (num_devices >= size) return {rank, {}};
  return {rank % num_devices,
          SharedGpuEnvironment(absl::StrCat("tessera-rank-", rank), nccl_version)};
}

absl::StatusOr<NcclMachine> MakeRealNcclMachine(int rank, int size) {
  unsetenv("NCCL_COMM_BLOCKING");  // It would overrule what the communicator asks for.
  ASSIGN_OR_RETURN(CudaApi* const cuda, LoadCudaApi());
  RETURN_IF_ERROR(cuda->Init());
  ASSIGN_OR_RETURN(const int num_devices, cuda->DeviceGetCount());
  if (num_devices == 0) return absl::NotFoundError("the driver has no device");
  NcclMachine machine;
  ASSIGN_OR_RETURN(machine.nccl, LoadNcclApi());
  int version = 0;
  machine.nccl->GetVersion(&version);
  const NcclPlacement placement = PlaceNcclRank(rank, size, num_devices, version);
  for (const auto& [name, value] : placement.environment) setenv(name.c_str(), value.c_str(), 1);
  CudaDevice::Options device_options;
  device_options.device = placement.device;
  ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device, CudaDevice::Create(cuda, device_options));
  ASSIGN_OR_RETURN(std::unique_ptr<GpuKernels> kernels,
                   GpuKernels::Create(device.get(), kMaxMeasured));
  NcclSharing sharing;
  for (const auto& [name, value] : placement.environment) {
    if (name == "NCCL_HOSTID") sharing.host_id = value;
    if (name == "NCCL_MULTI_RANK_GPU_ENABLE") sharing.enabled = true;
  }
  ASSIGN_OR_RETURN(machine.place, FindNcclPlace(cuda, placement.device, version, sharing));
  machine.device = device.release();
  machine.kernels = kernels.release();
  return machine;
}

absl::StatusOr<NcclMachine> MakeFakeNcclMachine(int rank, int size) {
  if (size != 1) return absl::InvalidArgumentError("fakes of several processes do not meet");
  auto* const cuda = new FakeCudaApi();
  FakeNcclApi::Options options;
  options.device_buffers_only = true;
  NcclMachine machine;
  machine.nccl = new FakeNcclApi(new FakeNcclWorld(), cuda, options);
  machine.kernels = new FakeSliceKernels(cuda);
  ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device, CudaDevice::Create(cuda, {}));
  machine.device = device.release();
  return machine;
}

absl::Status FindRealNccl() {
  return RankProcess([] { return MakeRealNcclMachine(0, 1).status(); }).Join();
}

std::vector<absl::Status> RunNcclProcesses(const NcclProcessOptions& options,
                                           const RankBody& body) {
  const SharedMapping shared(options.group.shared_bytes);
  return RunAll(options, [&](const SharedMapping& mapping, int rank) {
    char* const mapped = shared.MapAgain();
    const auto staged_body = [&](const NcclCommunicator::Options& own,
                                 ShmCommunicator* control) -> absl::Status {
      ASSIGN_OR_RETURN(const std::unique_ptr<NcclCommunicator> comm, NcclCommunicator::Create(own));
      ASSIGN_OR_RETURN(const std::unique_ptr<StagedCommunicator> staged,
                       StagedCommunicator::Create(comm.get(), own.device));
      // Not all leave Create at once, and a test may give its operations little time.
      RETURN_IF_ERROR(control->Barrier());
      control->set_timeout(options.group.timeout);
      return body(RankContext{staged.get(), mapped});
    };
    return RunRank(options, mapping, rank, staged_body);
  });
}

std::vector<absl::Status> RunNcclProcessesOnDevice(const NcclProcessOptions& options,
                                                   const NcclProcessBody& body) {
  return RunAll(options, [&](const SharedMapping& mapping, int rank) {
    return RunRank(
        options, mapping, rank,
        [&](const NcclCommunicator::Options& own, ShmCommunicator*) { return body(own); });
  });
}

}  // namespace tessera

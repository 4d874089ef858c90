#include "worker/comm/nccl/nccl_direct.h"

#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/nccl/nccl_communicator.h"
#include "worker/device/cuda/cuda_backend.h"

namespace tessera {
namespace {

class NcclDirect : public DirectCommunicators {
 public:
  NcclDirect(NcclApi* nccl, CudaBackend* backend, absl::Duration call_timeout,
             const DirectPlace& place, std::unique_ptr<NcclThread> thread)
      : nccl_(nccl),
        backend_(backend),
        call_timeout_(call_timeout),
        place_(place),
        thread_(std::move(thread)) {
    if (!nccl->registers())
      can_register_ = absl::UnimplementedError("this node's NCCL has no ncclCommRegister");
  }

  DirectPlace place() const override { return place_; }

  absl::Status CanRegister() const override { return can_register_; }

  absl::Status status() const override {
    if (!thread_->stuck()) return absl::OkStatus();
    return absl::UnavailableError("an NCCL call never returned");
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Join(const JoinOptions& join) override {
    NcclCommunicator::Options options;
    options.nccl = nccl_;
    options.thread = thread_.get();
    options.device = backend_->cuda_device();
    absl::StatusOr<std::unique_ptr<SliceKernels>> kernels =
        backend_->CreateSliceKernels(join.max_count);
    if (!kernels.ok()) {
      join.control->Abort(kernels.status());  // The others wait for this rank.
      return kernels.status();
    }
    options.owned_kernels = *std::move(kernels);
    options.kernels = options.owned_kernels.get();
    options.stream = std::string(join.stream);
    options.control = join.control;
    options.control_aborted = join.aborted;
    options.timeout = join.timeout;
    options.call_timeout = call_timeout_;
    options.place = place_;
    options.registers = join.registers;
    options.max_slice_bytes = join.max_slice_bytes;
    for (const Region& region : join.regions)
      options.regions.push_back({region.data, region.size_bytes});
    ASSIGN_OR_RETURN(std::unique_ptr<NcclCommunicator> made, NcclCommunicator::Create(options));
    // The library may be left in a state that the next operation finds; not twice.
    if (!made->could_register())
      can_register_ = absl::FailedPreconditionError("it failed before, see the log");
    return made;
  }

 private:
  NcclApi* const nccl_;
  CudaBackend* const backend_;
  const absl::Duration call_timeout_;
  const DirectPlace place_;
  const std::unique_ptr<NcclThread> thread_;
  absl::Status can_register_;
};

// A number of a text, never 0, that is the same in all processes.
uint64_t NumberOf(absl::string_view text) {
  uint64_t number = 14695981039346656037u;  // FNV-1a.
  for (const char c : text) number = (number ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return number == 0 ? 1 : number;
}

// As NCCL names a host that nobody names for it.
std::string HostName() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0) return "";
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  file >> boot_id;
  return absl::StrCat(name, boot_id);
}

std::string Environment(const char* name) {
  const char* const value = getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

absl::StatusOr<DirectPlace> FindNcclPlace(CudaApi* cuda, int device, int nccl_version,
                                          const NcclSharing& sharing) {
  const bool by_bus = nccl_version < kNcclSharedGpu;
  DirectPlace place;
  // Ranks that may share a GPU need no check.
  if (!by_bus && sharing.enabled) return place;
  ASSIGN_OR_RETURN(place.device, cuda->DeviceGetUuid(device));
  if (!sharing.host_id.empty()) place.apart = NumberOf(sharing.host_id);
  if (!by_bus) return place;
  ASSIGN_OR_RETURN(const std::string bus_id, cuda->DeviceGetPciBusId(device));
  const std::string host = sharing.host_id.empty() ? HostName() : sharing.host_id;
  place.slot = NumberOf(absl::StrCat(host, " ", bus_id));
  return place;
}

absl::StatusOr<std::unique_ptr<DirectCommunicators>> MakeNcclCommunicators(
    NcclApi* nccl, RankDevice* device, absl::Duration call_timeout, const NcclSharing& sharing) {
  auto* const backend = dynamic_cast<CudaBackend*>(device);
  if (backend == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("NCCL for ", device->name()));
  int version = 0;
  nccl->GetVersion(&version);
  const PrimaryContext* const context = backend->cuda_device()->context();
  ASSIGN_OR_RETURN(const DirectPlace place,
                   FindNcclPlace(context->api(), context->device(), version, sharing));
  ASSIGN_OR_RETURN(std::unique_ptr<NcclThread> thread, NcclThread::Create());
  return std::make_unique<NcclDirect>(nccl, backend, call_timeout, place, std::move(thread));
}

absl::StatusOr<std::unique_ptr<DirectCommunicators>> MakeMachineNccl(RankDevice* device) {
  unsetenv("NCCL_COMM_BLOCKING");  // It would overrule what communicators ask for.
  ASSIGN_OR_RETURN(NcclApi* const nccl, LoadNcclApi());
  NcclSharing sharing;
  sharing.host_id = Environment("NCCL_HOSTID");
  sharing.enabled = Environment("NCCL_MULTI_RANK_GPU_ENABLE") == "1";
  return MakeNcclCommunicators(nccl, device, absl::Seconds(30), sharing);
}

}  // namespace tessera

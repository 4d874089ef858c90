#include "worker/comm/nccl/nccl_direct.h"

#include <stdlib.h>

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
             std::unique_ptr<NcclThread> thread)
      : nccl_(nccl), backend_(backend), call_timeout_(call_timeout), thread_(std::move(thread)) {
    if (!nccl->registers())
      can_register_ = absl::UnimplementedError("this machine's NCCL has no ncclCommRegister");
  }

  absl::Status CanRegister() const override { return can_register_; }

  absl::Status status() const override {
    if (!thread_->stuck()) return absl::OkStatus();
    return absl::UnavailableError("a call of NCCL never came back");
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
    options.control = join.control;
    options.control_aborted = join.aborted;
    options.timeout = join.timeout;
    options.call_timeout = call_timeout_;
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
  const std::unique_ptr<NcclThread> thread_;
  absl::Status can_register_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DirectCommunicators>> MakeNcclCommunicators(
    NcclApi* nccl, RankDevice* device, absl::Duration call_timeout) {
  auto* const backend = dynamic_cast<CudaBackend*>(device);
  if (backend == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("NCCL for ", device->name()));
  ASSIGN_OR_RETURN(std::unique_ptr<NcclThread> thread, NcclThread::Create());
  return std::make_unique<NcclDirect>(nccl, backend, call_timeout, std::move(thread));
}

absl::StatusOr<std::unique_ptr<DirectCommunicators>> MakeMachineNccl(RankDevice* device) {
  unsetenv("NCCL_COMM_BLOCKING");  // It would overrule what communicators ask for.
  ASSIGN_OR_RETURN(NcclApi* const nccl, LoadNcclApi());
  return MakeNcclCommunicators(nccl, device);
}

}  // namespace tessera

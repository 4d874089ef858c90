#include "worker/device/cuda/cuda_context.h"

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

std::string VersionName(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

absl::Status CheckCudaDevice(CudaApi* api, int device, int min_driver_version) {
  ASSIGN_OR_RETURN(const int version, api->DriverGetVersion());
  if (version < min_driver_version) {
    return absl::FailedPreconditionError(
        absl::StrCat("the driver serves CUDA ", VersionName(version), ", and CUDA ",
                     VersionName(min_driver_version), " is needed"));
  }
  // Only after the version, whose error is the more helpful one.
  RETURN_IF_ERROR(api->Init());
  ASSIGN_OR_RETURN(const int count, api->DeviceGetCount());
  if (device >= 0 && device < count) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("no cuda:", device, ": there are ", count, " devices"));
}

absl::StatusOr<int> FindCudaDevice(CudaApi* api, const DeviceName& device, int min_driver_version) {
  if (!device.has_uuid()) {
    RETURN_IF_ERROR(CheckCudaDevice(api, device.number, min_driver_version));
    return device.number;
  }
  // Numbers differ between processes (CUDA_VISIBLE_DEVICES), so the UUID decides.
  RETURN_IF_ERROR(Annotate(CheckCudaDevice(api, 0, min_driver_version), UuidText(device.uuid)));
  ASSIGN_OR_RETURN(const int count, api->DeviceGetCount());
  std::string seen;
  for (int number = 0; number < count; ++number) {
    ASSIGN_OR_RETURN(const DeviceUuid uuid, api->DeviceGetUuid(number));
    if (uuid == device.uuid) return number;
    absl::StrAppend(&seen, number == 0 ? "" : ", ", UuidText(uuid));
  }
  return absl::NotFoundError(absl::StrCat(
      UuidText(device.uuid),
      device.number < 0 ? "" : absl::StrCat(", which is cuda:", device.number, " of the worker,"),
      " is not among the devices that this process sees: ", seen));
}

absl::Status NameWantedMemory(CudaApi* api, const absl::Status& status, int64_t wanted_bytes) {
  if (!absl::IsResourceExhausted(status)) return status;
  const absl::StatusOr<CudaMemInfo> info = api->MemGetInfo();
  const std::string free =
      info.ok() ? absl::StrCat(info->free_bytes, " of ", info->total_bytes, " bytes are free")
                : absl::StrCat("what is free is unknown: ", info.status().message());
  return absl::ResourceExhaustedError(
      absl::StrCat(status.message(), ": wanted ", wanted_bytes, " bytes, ", free));
}

PrimaryContext::PrimaryContext(CudaApi* api, int device)
    : api_(api), device_(device), name_(absl::StrCat("cuda:", device)) {}

absl::StatusOr<std::unique_ptr<PrimaryContext>> PrimaryContext::Create(CudaApi* api, int device,
                                                                       int min_driver_version) {
  RETURN_IF_ERROR(CheckCudaDevice(api, device, min_driver_version));
  auto context = absl::WrapUnique(new PrimaryContext(api, device));
  absl::StatusOr<CudaContext*> retained = api->DevicePrimaryCtxRetain(device);
  RETURN_IF_ERROR(Annotate(retained.status(), context->name()));
  // Stored first: the destructor releases it if Use fails.
  context->context_ = *retained;
  RETURN_IF_ERROR(Annotate(context->Use(), context->name()));
  return context;
}

PrimaryContext::~PrimaryContext() {
  // The primary one, which the trainer's own code shares in its process: it goes with the last
  // user.
  if (context_ != nullptr) Check(api_->DevicePrimaryCtxRelease(device_));
}

bool PrimaryContext::Check(const absl::Status& status) {
  if (status.ok()) return true;
  absl::MutexLock lock(&mu_);
  // Only the first: later errors are its consequences.
  // For good: after most errors each call of the context fails, so the executor ends
  // (docs/adr/0040).
  if (first_error_.ok()) {
    first_error_ = Annotate(status, name_);
    TESSERA_LOG(ERROR, "{}", first_error_.ToString());
  }
  return false;
}

absl::Status PrimaryContext::status() const {
  absl::MutexLock lock(&mu_);
  return first_error_;
}

}  // namespace tessera

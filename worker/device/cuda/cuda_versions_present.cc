// QueryCudaVersions of a build with the toolkit.
#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "cuda.h"
#include "cuda_runtime_api.h"
#include "worker/device/cuda/cuda_versions.h"
#if TESSERA_HAS_NCCL
#include "nccl.h"
#endif

namespace tessera {
namespace {

constexpr char kDriverLibrary[] = "libcuda.so.1";

struct Driver {
  decltype(&cuInit) init = nullptr;
  decltype(&cuDriverGetVersion) get_version = nullptr;
  decltype(&cuDeviceGetCount) get_count = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;
  absl::Status status;
};

template <typename Function>
void Resolve(void* library, const char* name, Function* function, absl::Status* status) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) {
    status->Update(absl::NotFoundError(absl::StrCat(kDriverLibrary, " has no ", name)));
  }
}

Driver LoadDriver() {
  Driver driver;
  // Opened by name, so that the program starts on machines without a driver.
  void* library = dlopen(kDriverLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    driver.status = absl::NotFoundError(dlerror());
    return driver;
  }
  Resolve(library, "cuInit", &driver.init, &driver.status);
  Resolve(library, "cuDriverGetVersion", &driver.get_version, &driver.status);
  Resolve(library, "cuDeviceGetCount", &driver.get_count, &driver.status);
  Resolve(library, "cuGetErrorString", &driver.error_string, &driver.status);
  return driver;
}

absl::Status ToStatus(const Driver& driver, CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* text = nullptr;
  if (driver.error_string(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  return absl::FailedPreconditionError(
      absl::StrCat(call, ": ", text, " (", static_cast<int>(result), ")"));
}

void QueryDriver(const Driver& driver, CudaVersions* versions) {
  versions->driver_status = driver.status;
  if (!driver.status.ok()) return;
  // Answers without a device, and before cuInit.
  versions->driver_status =
      ToStatus(driver, driver.get_version(&versions->driver), "cuDriverGetVersion");
  versions->driver_status.Update(ToStatus(driver, driver.init(0), "cuInit"));
  if (!versions->driver_status.ok()) return;
  versions->driver_status =
      ToStatus(driver, driver.get_count(&versions->num_devices), "cuDeviceGetCount");
  if (!versions->driver_status.ok()) versions->num_devices = 0;
}

}  // namespace

CudaVersions QueryCudaVersions() {
  CudaVersions versions;
  versions.toolkit = CUDA_VERSION;
  if (cudaRuntimeGetVersion(&versions.runtime) != cudaSuccess) versions.runtime = 0;
#if TESSERA_HAS_NCCL
  versions.nccl = NCCL_VERSION_CODE;
#endif
  static const Driver driver = LoadDriver();
  QueryDriver(driver, &versions);
  return versions;
}

}  // namespace tessera

// QueryCudaVersions of a build without the toolkit.
#include "worker/device/cuda/cuda_versions.h"

namespace tessera {

CudaVersions QueryCudaVersions() {
  CudaVersions versions;
  versions.driver_status = absl::UnimplementedError("built without CUDA");
  return versions;
}

}  // namespace tessera

// LoadCudaApi of a build without the toolkit.
#include "worker/device/cuda/cuda_api.h"

namespace tessera {

int LeastDriverVersion() { return 12000; }

absl::StatusOr<CudaApi*> LoadCudaApi() { return absl::UnimplementedError("built without CUDA"); }

}  // namespace tessera

// LoadNcclApi of a build without NCCL.
#include "worker/comm/nccl/nccl_api.h"

namespace tessera {

absl::StatusOr<NcclApi*> LoadNcclApi() { return absl::UnimplementedError("built without NCCL"); }

}  // namespace tessera

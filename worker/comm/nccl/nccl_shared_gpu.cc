#include "worker/comm/nccl/nccl_shared_gpu.h"

#include "worker/comm/nccl/nccl_api.h"

namespace tessera {

NcclEnvironment SharedGpuEnvironment(const std::string& host_id, int nccl_version) {
  NcclEnvironment environment;
  if (nccl_version >= kNcclSharedGpu) {
    // By default a device has room for two ranks; each with fewer blocks, for more.
    environment = {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}, {"NCCL_MAX_CTAS", "2"}};
  } else {
    // It takes ranks with ids of their own for hosts, which have no device in common.
    environment = {{"NCCL_HOSTID", host_id}};
  }
  environment.emplace_back("NCCL_NET", "Socket");
  environment.emplace_back("NCCL_SOCKET_IFNAME", "lo");
  environment.emplace_back("NCCL_NVLS_ENABLE", "0");
  return environment;
}

}  // namespace tessera

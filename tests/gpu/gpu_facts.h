// What this machine has of a GPU, and whether it can be checked. Thread-safe.
#ifndef TESSERA_TESTS_GPU_GPU_FACTS_H_
#define TESSERA_TESTS_GPU_GPU_FACTS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/comm/nccl/nccl_api.h"
#include "worker/device/cuda/cuda_api.h"
#include "worker/device/cuda/mps.h"

namespace tessera {
namespace gpu_check {

// Versions as CUDA and NCCL number them (see worker/device/cuda/cuda_versions.h); 0: unknown.
struct GpuFacts {
  absl::Status usable;  // Else why not, in a sentence that begins with what is missing.
  int built_with = 0;   // The toolkit; 0: none.
  int driver_cuda = 0;  // The newest CUDA that the driver serves.
  std::string driver;   // What the kernel's module says of itself.
  int num_devices = 0;
  std::string name;    // Of cuda:0, which is the one that is checked.
  int capability = 0;  // 90: 9.0.
  int64_t memory_bytes = 0;
  int nccl = 0;
  std::string nccl_error;
  MpsFinding mps;  // Whether programs of this environment go by it.
};

// `driver_text` is that of /proc/driver/nvidia/version, or empty. That MPS runs, or not, forbids
// nothing.
GpuFacts FindGpu(const absl::StatusOr<CudaApi*>& cuda, const absl::StatusOr<NcclApi*>& nccl,
                 int toolkit, const std::string& driver_text, const MpsFinding& mps);

nlohmann::ordered_json ToJson(const GpuFacts& facts);

// "NVIDIA H200, 139 GiB; driver for CUDA 13.0; NCCL 2.28.9; MPS not running"
std::string Describe(const GpuFacts& facts);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_GPU_FACTS_H_

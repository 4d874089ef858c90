// What of CUDA this program was built with, and what of it this machine has.
//
//   built with CUDA 13.0 and NCCL 2.28.9; driver for CUDA 13.0, 8 devices
//   built with CUDA 13.0 and NCCL 2.28.9; no driver: libcuda.so.1: cannot open shared object file
//   built without CUDA
//
// The driver is loaded when it is asked for and never linked, so that one program starts on every
// machine. Versions are numbered as CUDA (1000 * major + 10 * minor) and NCCL (10000 * major +
// 100 * minor + patch) number them; 0 is none. Pure values; QueryCudaVersions is thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_CUDA_VERSIONS_H_
#define TESSERA_WORKER_DEVICE_CUDA_CUDA_VERSIONS_H_

#include <string>

#include "absl/status/status.h"

namespace tessera {

struct CudaVersions {
  int toolkit = 0;  // 0: built without CUDA, and all else is 0 too.
  int runtime = 0;  // The runtime library in this program.
  int nccl = 0;
  int driver = 0;       // The newest CUDA that the machine's driver serves.
  int num_devices = 0;  // 0 whenever `driver_status` is an error.
  // Unimplemented       built without CUDA
  // NotFound            no driver can be loaded: its library is missing, or lacks a function
  // FailedPrecondition  the driver is there and refuses: no device, or older than the toolkit
  absl::Status driver_status;
};

// Loads the driver at the first call, and leaves it loaded.
CudaVersions QueryCudaVersions();

// One line, as drawn above.
std::string Describe(const CudaVersions& versions);

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_CUDA_VERSIONS_H_

// What the driver's error numbers mean, as absl::Status: "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY
// (2)".
//
//   code                errors                                   what the caller may do
//   ResourceExhausted   no memory, no launch resources           try less; all is as before
//   InvalidArgument     an impossible value, a refused handle    nothing was done
//   FailedPrecondition  driver too old, no context               another driver, another order
//   AlreadyExists       memory that is registered already        nothing was done
//   NotFound            no device, no such device                run without
//   Unimplemented       the device or driver cannot do it        another way
//   PermissionDenied    the system refuses it                    ask the administrator
//   Internal            the context is broken for good (sticky)  end the process
//   Unavailable         the device is gone or not to be had      end the process, another device
//   Unknown             a number that is not in the table
//
// The numbers are CUDA's, so that builds without the toolkit can name them. Pure; thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_CUDA_ERROR_H_
#define TESSERA_WORKER_DEVICE_CUDA_CUDA_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaInvalidValue = 1;
inline constexpr int kCudaOutOfMemory = 2;
inline constexpr int kCudaNotInitialized = 3;
inline constexpr int kCudaDeviceUnavailable = 46;
inline constexpr int kCudaNoDevice = 100;
inline constexpr int kCudaInvalidDevice = 101;
inline constexpr int kCudaInvalidContext = 201;
inline constexpr int kCudaEccUncorrectable = 214;
inline constexpr int kCudaOperatingSystem = 304;
inline constexpr int kCudaInvalidHandle = 400;
inline constexpr int kCudaNotReady = 600;
inline constexpr int kCudaIllegalAddress = 700;
inline constexpr int kCudaHostMemoryAlreadyRegistered = 712;
inline constexpr int kCudaHostMemoryNotRegistered = 713;
inline constexpr int kCudaLaunchFailed = 719;
inline constexpr int kCudaNotPermitted = 800;
inline constexpr int kCudaNotSupported = 801;
inline constexpr int kCudaSystemDriverMismatch = 803;
inline constexpr int kCudaStreamCaptureUnsupported = 900;

// OK for kCudaSuccess.
absl::Status CudaStatus(absl::string_view call, int error);

// Whether nothing will work in this process any more: the context is broken or the device lost.
bool IsBroken(const absl::Status& status);

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_CUDA_ERROR_H_

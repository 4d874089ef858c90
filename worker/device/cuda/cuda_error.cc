#include "worker/device/cuda/cuda_error.h"

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

using Code = absl::StatusCode;

struct Meaning {
  int error;
  const char* name;
  Code code;
};

constexpr Meaning kMeanings[] = {
    {kCudaInvalidValue, "CUDA_ERROR_INVALID_VALUE", Code::kInvalidArgument},
    {kCudaOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", Code::kResourceExhausted},
    {kCudaNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", Code::kFailedPrecondition},
    {4, "CUDA_ERROR_DEINITIALIZED", Code::kFailedPrecondition},
    // Of the runtime alone, which kernels are launched by.
    {9, "cudaErrorInvalidConfiguration", Code::kInvalidArgument},
    {34, "CUDA_ERROR_STUB_LIBRARY", Code::kFailedPrecondition},
    {35, "cudaErrorInsufficientDriver", Code::kFailedPrecondition},
    {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", Code::kFailedPrecondition},
    {kCudaDeviceUnavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE", Code::kUnavailable},
    {98, "cudaErrorInvalidDeviceFunction", Code::kUnimplemented},
    {kCudaNoDevice, "CUDA_ERROR_NO_DEVICE", Code::kNotFound},
    {kCudaInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", Code::kNotFound},
    {102, "CUDA_ERROR_DEVICE_NOT_LICENSED", Code::kPermissionDenied},
    {kCudaInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", Code::kFailedPrecondition},
    {205, "CUDA_ERROR_MAP_FAILED", Code::kResourceExhausted},
    {206, "CUDA_ERROR_UNMAP_FAILED", Code::kInternal},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", Code::kUnimplemented},
    {kCudaEccUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE", Code::kInternal},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", Code::kInternal},
    {226, "CUDA_ERROR_CONTAINED", Code::kInternal},
    {kCudaOperatingSystem, "CUDA_ERROR_OPERATING_SYSTEM", Code::kFailedPrecondition},
    {kCudaInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", Code::kInvalidArgument},
    {500, "CUDA_ERROR_NOT_FOUND", Code::kNotFound},
    {kCudaNotReady, "CUDA_ERROR_NOT_READY", Code::kFailedPrecondition},
    {kCudaIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", Code::kInternal},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", Code::kResourceExhausted},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", Code::kInternal},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", Code::kInternal},
    {710, "CUDA_ERROR_ASSERT", Code::kInternal},
    {kCudaHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     Code::kAlreadyExists},
    {kCudaHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     Code::kFailedPrecondition},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", Code::kInternal},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", Code::kInternal},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", Code::kInternal},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", Code::kInternal},
    {718, "CUDA_ERROR_INVALID_PC", Code::kInternal},
    {kCudaLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", Code::kInternal},
    {kCudaNotPermitted, "CUDA_ERROR_NOT_PERMITTED", Code::kPermissionDenied},
    {kCudaNotSupported, "CUDA_ERROR_NOT_SUPPORTED", Code::kUnimplemented},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", Code::kUnavailable},
    {kCudaSystemDriverMismatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", Code::kFailedPrecondition},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", Code::kFailedPrecondition},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED", Code::kUnavailable},
    {806, "CUDA_ERROR_MPS_RPC_FAILURE", Code::kUnavailable},
    {807, "CUDA_ERROR_MPS_SERVER_NOT_READY", Code::kUnavailable},
    {808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", Code::kResourceExhausted},
    {809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", Code::kResourceExhausted},
    {810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", Code::kUnavailable},
    {kCudaStreamCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     Code::kFailedPrecondition},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", Code::kFailedPrecondition},
    {999, "CUDA_ERROR_UNKNOWN", Code::kInternal},
};

}  // namespace

absl::Status CudaStatus(absl::string_view call, int error) {
  if (error == kCudaSuccess) return absl::OkStatus();
  for (const Meaning& meaning : kMeanings) {
    if (meaning.error == error) {
      return absl::Status(meaning.code, absl::StrCat(call, ": ", meaning.name, " (", error, ")"));
    }
  }
  return absl::UnknownError(absl::StrCat(call, ": CUDA error ", error));
}

bool IsBroken(const absl::Status& status) {
  return absl::IsInternal(status) || absl::IsUnavailable(status);
}

}  // namespace tessera

// The pure parts of nccl_api.h.
#include "absl/strings/str_cat.h"
#include "worker/comm/nccl/nccl_api.h"

namespace tessera {

NcclType NcclTypeOf(ElementType type) {
  if (type == Fp8Format::kE4M3) return NcclType::kFloat8e4m3;
  if (type == Fp8Format::kE5M2) return NcclType::kFloat8e5m2;
  switch (type.dtype()) {
    case DType::kFp32:
      return NcclType::kFloat32;
    case DType::kBf16:
      return NcclType::kBfloat16;
    case DType::kFp16:
      return NcclType::kFloat16;
    case DType::kFp64:
      return NcclType::kFloat64;
    case DType::kInt64:
      return NcclType::kInt64;
    case DType::kInt32:
      return NcclType::kInt32;
  }
  return NcclType::kUint8;
}

int64_t SizeBytes(NcclType type) {
  switch (type) {
    case NcclType::kUint8:
    case NcclType::kFloat8e4m3:
    case NcclType::kFloat8e5m2:
      return 1;
    case NcclType::kFloat16:
    case NcclType::kBfloat16:
      return 2;
    case NcclType::kInt32:
    case NcclType::kFloat32:
      return 4;
    case NcclType::kInt64:
    case NcclType::kFloat64:
      return 8;
  }
  return 0;
}

std::string NcclName(NcclResult result) {
  constexpr const char* kNames[] = {
      "ncclSuccess",         "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
      "ncclInvalidArgument", "ncclInvalidUsage",       "ncclRemoteError", "ncclInProgress"};
  const int number = static_cast<int>(result);
  const bool known = number >= 0 && number < static_cast<int>(sizeof(kNames) / sizeof(*kNames));
  return absl::StrCat(known ? kNames[number] : "NCCL error", " (", number, ")");
}

}  // namespace tessera

// Element types of parameters and their sizes. Pure; thread-safe.
#ifndef TESSERA_LAYOUT_DTYPE_H_
#define TESSERA_LAYOUT_DTYPE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

enum class DType : uint8_t { kFp32, kBf16, kFp16, kFp64, kInt64, kInt32 };

constexpr int64_t SizeBytes(DType dtype) {
  switch (dtype) {
    case DType::kFp64:
    case DType::kInt64:
      return 8;
    case DType::kFp32:
    case DType::kInt32:
      return 4;
    case DType::kBf16:
    case DType::kFp16:
      return 2;
  }
  return 0;
}

constexpr bool IsFloatingPoint(DType dtype) {
  return dtype != DType::kInt64 && dtype != DType::kInt32;
}

// What a job keeps a parameter in that the model has in `dtype`: fp64, or else fp32.
constexpr DType FullDType(DType dtype) {
  return dtype == DType::kFp64 ? DType::kFp64 : DType::kFp32;
}

constexpr bool IsHalf(DType dtype) { return dtype == DType::kBf16 || dtype == DType::kFp16; }

// "fp32", "bf16", "fp16", "fp64", "int64", "int32".
absl::string_view Name(DType dtype);
// Accepts those names and PyTorch's ("float32", "bfloat16", ...).
// Errors: InvalidArgument  unknown name.
absl::StatusOr<DType> ParseDType(absl::string_view name);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_DTYPE_H_

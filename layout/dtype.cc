#include "layout/dtype.h"

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

struct DTypeName {
  DType dtype;
  absl::string_view name;
  absl::string_view torch_name;
  absl::string_view torch_alias;
};

constexpr DTypeName kNames[] = {
    {DType::kFp32, "fp32", "float32", "float"}, {DType::kBf16, "bf16", "bfloat16", "bfloat16"},
    {DType::kFp16, "fp16", "float16", "half"},  {DType::kFp64, "fp64", "float64", "double"},
    {DType::kInt64, "int64", "int64", "long"},  {DType::kInt32, "int32", "int32", "int"},
};

}  // namespace

absl::string_view Name(DType dtype) {
  for (const DTypeName& entry : kNames) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "unknown";
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (const DTypeName& entry : kNames) {
    if (name == entry.name || name == entry.torch_name || name == entry.torch_alias) {
      return entry.dtype;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown dtype \"", absl::CHexEscape(name.substr(0, 40)),
                   "\"; known are fp32, bf16, fp16, fp64, int64, int32"));
}

}  // namespace tessera

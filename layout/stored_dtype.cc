#include "layout/stored_dtype.h"

namespace tessera {
namespace {

struct Row {
  StoredDType dtype;
  const char* name;
  int bits;
};

constexpr Row kRows[] = {
    {StoredDType::kBool, "BOOL", 8},
    {StoredDType::kF4, "F4", 4},
    {StoredDType::kF6E2M3, "F6_E2M3", 6},
    {StoredDType::kF6E3M2, "F6_E3M2", 6},
    {StoredDType::kU8, "U8", 8},
    {StoredDType::kI8, "I8", 8},
    {StoredDType::kF8E5M2, "F8_E5M2", 8},
    {StoredDType::kF8E4M3, "F8_E4M3", 8},
    {StoredDType::kF8E8M0, "F8_E8M0", 8},
    {StoredDType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {StoredDType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {StoredDType::kI16, "I16", 16},
    {StoredDType::kU16, "U16", 16},
    {StoredDType::kF16, "F16", 16},
    {StoredDType::kBf16, "BF16", 16},
    {StoredDType::kI32, "I32", 32},
    {StoredDType::kU32, "U32", 32},
    {StoredDType::kF32, "F32", 32},
    {StoredDType::kC64, "C64", 64},
    {StoredDType::kF64, "F64", 64},
    {StoredDType::kI64, "I64", 64},
    {StoredDType::kU64, "U64", 64},
};

// The rows are in the order of the enum.
const Row& RowOf(StoredDType dtype) { return kRows[static_cast<int>(dtype)]; }

}  // namespace

absl::string_view Name(StoredDType dtype) { return RowOf(dtype).name; }

std::optional<StoredDType> ParseStoredDType(absl::string_view name) {
  for (const Row& row : kRows) {
    if (name == row.name) return row.dtype;
  }
  return std::nullopt;
}

int64_t SizeBits(StoredDType dtype) { return RowOf(dtype).bits; }

StoredDType StoredAs(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return StoredDType::kF32;
    case DType::kBf16:
      return StoredDType::kBf16;
    case DType::kFp16:
      return StoredDType::kF16;
    case DType::kFp64:
      return StoredDType::kF64;
    case DType::kInt64:
      return StoredDType::kI64;
    case DType::kInt32:
      return StoredDType::kI32;
  }
  return StoredDType::kF32;
}

std::optional<DType> LayoutDType(StoredDType dtype) {
  for (const DType known :
       {DType::kFp32, DType::kBf16, DType::kFp16, DType::kFp64, DType::kInt64, DType::kInt32}) {
    if (StoredAs(known) == dtype) return known;
  }
  return std::nullopt;
}

std::optional<int64_t> SizeBytes(StoredDType dtype, int64_t numel) {
  int64_t bits;
  // Types below a byte: only whole bytes have a size.
  if (__builtin_mul_overflow(numel, SizeBits(dtype), &bits) || bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

}  // namespace tessera

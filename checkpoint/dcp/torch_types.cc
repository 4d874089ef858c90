#include "checkpoint/dcp/torch_types.h"

namespace tessera::dcp {
namespace {

struct Row {
  absl::string_view name;
  StoredDType dtype;
  absl::string_view storage;  // Empty: such storages have no class of their own.
};

constexpr Row kRows[] = {
    {"torch float32", StoredDType::kF32, "torch FloatStorage"},
    {"torch bfloat16", StoredDType::kBf16, "torch BFloat16Storage"},
    {"torch float16", StoredDType::kF16, "torch HalfStorage"},
    {"torch float64", StoredDType::kF64, "torch DoubleStorage"},
    {"torch int64", StoredDType::kI64, "torch LongStorage"},
    {"torch int32", StoredDType::kI32, "torch IntStorage"},
    {"torch int16", StoredDType::kI16, "torch ShortStorage"},
    {"torch int8", StoredDType::kI8, "torch CharStorage"},
    {"torch uint8", StoredDType::kU8, "torch ByteStorage"},
    {"torch bool", StoredDType::kBool, "torch BoolStorage"},
    {"torch complex64", StoredDType::kC64, "torch ComplexFloatStorage"},
    {"torch uint16", StoredDType::kU16, ""},
    {"torch uint32", StoredDType::kU32, ""},
    {"torch uint64", StoredDType::kU64, ""},
    {"torch float8_e4m3fn", StoredDType::kF8E4M3, ""},
    {"torch float8_e5m2", StoredDType::kF8E5M2, ""},
    {"torch float8_e4m3fnuz", StoredDType::kF8E4M3Fnuz, ""},
    {"torch float8_e5m2fnuz", StoredDType::kF8E5M2Fnuz, ""},
    {"torch float8_e8m0fnu", StoredDType::kF8E8M0, ""},
};

}  // namespace

std::optional<StoredDType> DTypeOfName(absl::string_view global) {
  for (const Row& row : kRows) {
    if (row.name == global) return row.dtype;
  }
  return std::nullopt;
}

std::optional<StoredDType> DTypeOfStorage(absl::string_view global) {
  for (const Row& row : kRows) {
    if (!row.storage.empty() && row.storage == global) return row.dtype;
  }
  return std::nullopt;
}

std::vector<absl::string_view> DTypeNames() {
  std::vector<absl::string_view> names;
  for (const Row& row : kRows) names.push_back(row.name);
  return names;
}

std::vector<absl::string_view> StorageNames() {
  std::vector<absl::string_view> names;
  for (const Row& row : kRows) {
    if (!row.storage.empty()) names.push_back(row.storage);
  }
  return names;
}

}  // namespace tessera::dcp

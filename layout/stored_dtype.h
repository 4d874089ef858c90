// What elements in a file may be: every dtype of the safetensors format, in the order of its
// writer. Tessera trains in a few of them; the others are listed, and refused only when read into a
// parameter. Pure functions; thread-safe.
//
//   "F32" in a file ◄──► StoredDType::kF32 ──► DType::kFp32        "F4" ◄──► kF4 ──► nothing
//
// Source: huggingface/safetensors README.md (names, bits); its writer (order).
#ifndef TESSERA_LAYOUT_STORED_DTYPE_H_
#define TESSERA_LAYOUT_STORED_DTYPE_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "layout/dtype.h"

namespace tessera {

// A writer puts the tensors of a larger one first, so each is aligned to its own element size.
enum class StoredDType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

// "F32", as it stands in a file.
absl::string_view Name(StoredDType dtype);
std::optional<StoredDType> ParseStoredDType(absl::string_view name);

int64_t SizeBits(StoredDType dtype);

StoredDType StoredAs(DType dtype);
// What Tessera calls it; nothing where it has no such type.
std::optional<DType> LayoutDType(StoredDType dtype);

inline bool operator==(StoredDType stored, DType dtype) { return stored == StoredAs(dtype); }
inline bool operator!=(StoredDType stored, DType dtype) { return !(stored == dtype); }

// The bytes of `numel` elements. Nothing if that overflows, or is not a whole number of bytes.
std::optional<int64_t> SizeBytes(StoredDType dtype, int64_t numel);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_STORED_DTYPE_H_

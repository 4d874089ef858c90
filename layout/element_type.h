// The types of elements that ranks move and sum: a dtype of a job, or an FP8 format, which is not a
// dtype of a job: nothing is trained in it, and callers round to it for transport.
//
//   DType ─────────┐
//                  ├──► ElementType      implicitly, so a dtype is passed as it is
//   Fp8Format ─────┘
//
// Pure; thread-safe.
#ifndef TESSERA_LAYOUT_ELEMENT_TYPE_H_
#define TESSERA_LAYOUT_ELEMENT_TYPE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "layout/dtype.h"

namespace tessera {

// float8_e4m3fn and float8_e5m2 of PyTorch.
enum class Fp8Format : uint8_t { kE4M3, kE5M2 };

class ElementType {
 public:
  constexpr ElementType(DType dtype)  // NOLINT(google-explicit-constructor)
      : number_(static_cast<uint8_t>(dtype)) {}
  constexpr ElementType(Fp8Format format)  // NOLINT(google-explicit-constructor)
      : number_(static_cast<uint8_t>(kFirstFp8 + static_cast<uint8_t>(format))) {}

  constexpr bool is_fp8() const { return number_ >= kFirstFp8; }
  constexpr DType dtype() const { return static_cast<DType>(number_); }  // Of one that is not FP8.
  constexpr Fp8Format fp8() const { return static_cast<Fp8Format>(number_ - kFirstFp8); }
  // DType's where it is one. For digests and for kernels.
  constexpr int number() const { return number_; }

  friend constexpr bool operator==(ElementType a, ElementType b) { return a.number_ == b.number_; }
  friend constexpr bool operator!=(ElementType a, ElementType b) { return !(a == b); }

 private:
  static constexpr uint8_t kFirstFp8 = 16;

  uint8_t number_;
};

constexpr int64_t SizeBytes(ElementType type) {
  return type.is_fp8() ? 1 : SizeBytes(type.dtype());
}

constexpr bool IsFloatingPoint(ElementType type) {
  return type.is_fp8() || IsFloatingPoint(type.dtype());
}

// A dtype's name, "fp8_e4m3" or "fp8_e5m2".
inline absl::string_view Name(ElementType type) {
  if (!type.is_fp8()) return Name(type.dtype());
  return type.fp8() == Fp8Format::kE4M3 ? "fp8_e4m3" : "fp8_e5m2";
}

}  // namespace tessera

#endif  // TESSERA_LAYOUT_ELEMENT_TYPE_H_

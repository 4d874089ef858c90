#include "checkpoint/safetensors/rounded_values.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/kernels.h"

namespace tessera {
namespace {

bool IsInfinite(DType dtype, uint16_t half) {
  // All exponent bits and no fraction: infinity. NaN has a fraction.
  return (half & 0x7fff) == (dtype == DType::kBf16 ? 0x7f80 : 0x7c00);
}

template <typename Real, typename Stored, typename IsInf>
absl::Status CheckFinite(absl::Span<const Real> values, const Stored* stored, DType dtype,
                         IsInf is_infinite) {
  for (size_t i = 0; i < values.size(); ++i) {
    // A finite value that rounds to infinity would be a silent loss.
    if (!is_infinite(stored[i]) || std::isinf(values[i])) continue;
    return absl::OutOfRangeError(
        absl::StrCat("the value ", values[i], " is too large for ", Name(dtype)));
  }
  return absl::OkStatus();
}

template <typename Real>
absl::StatusOr<std::string> ToHalf(absl::Span<const Real> values, DType dtype) {
  std::string bytes(values.size() * sizeof(uint16_t), '\0');
  auto* half = reinterpret_cast<uint16_t*>(bytes.data());
  if constexpr (sizeof(Real) == sizeof(float)) {
    host::CastFp32ToHalf(dtype, values.data(), half, values.size());
  } else {
    host::CastFp64ToHalf(dtype, values.data(), half, values.size());
  }
  const absl::Status finite =
      CheckFinite(values, half, dtype, [&](uint16_t value) { return IsInfinite(dtype, value); });
  if (!finite.ok()) return finite;
  return bytes;
}

absl::StatusOr<std::string> ToFp32(absl::Span<const double> values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  auto* single = reinterpret_cast<float*>(bytes.data());
  for (size_t i = 0; i < values.size(); ++i) single[i] = static_cast<float>(values[i]);
  const absl::Status finite =
      CheckFinite(values, single, DType::kFp32, [](float value) { return std::isinf(value); });
  if (!finite.ok()) return finite;
  return bytes;
}

}  // namespace

DType SavedDType(DType full, DType wanted) {
  return SizeBytes(wanted) < SizeBytes(full) ? wanted : full;
}

absl::StatusOr<std::string> RoundValues(ConstValues values, DType dtype) {
  if (dtype == values.dtype())
    return std::string(static_cast<const char*>(values.data()), values.size_bytes());
  const bool is_fp64 = values.dtype() == DType::kFp64;
  if (IsHalf(dtype)) {
    return is_fp64 ? ToHalf(values.as<double>(), dtype) : ToHalf(values.as<float>(), dtype);
  }
  if (dtype == DType::kFp32 && is_fp64) return ToFp32(values.as<double>());
  return absl::InvalidArgumentError(
      absl::StrCat(Name(values.dtype()), " is not saved as ", Name(dtype)));
}

}  // namespace tessera

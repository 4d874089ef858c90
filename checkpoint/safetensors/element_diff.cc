#include "checkpoint/safetensors/element_diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "kernels/kernels.h"
#include "layout/dtype.h"

namespace tessera {
namespace {

// An element that differs. `difference`: infinite or NaN where a side is.
void Note(int64_t element, double difference, ElementDiff* diff) {
  if (diff->num_different++ == 0) diff->first_element = element;
  if (std::isfinite(difference)) {
    diff->largest = std::max(diff->largest, std::abs(difference));
  } else {
    ++diff->num_non_finite;
  }
}

template <typename Number>
Number Load(absl::string_view bytes, int64_t i) {
  Number number;
  memcpy(&number, bytes.data() + i * sizeof(Number), sizeof(Number));
  return number;
}

void NoteReals(double a, double b, int64_t element, ElementDiff* diff) {
  // NaNs of different bits count as equal.
  if (std::isnan(a) && std::isnan(b)) return;
  if (!std::isfinite(a) || !std::isfinite(b))
    return Note(element, std::numeric_limits<double>::infinity(), diff);
  // Two finite ones may be further apart than a double can say.
  const double most = std::numeric_limits<double>::max();
  Note(element, std::min(std::abs(a - b), most), diff);
}

template <typename Real>
void CompareReals(absl::string_view a, absl::string_view b, int64_t begin, ElementDiff* diff) {
  const int64_t count = a.size() / sizeof(Real);
  for (int64_t i = 0; i < count; ++i) {
    // By bits first: it is fast, and takes care of equal NaNs and infinities.
    if (memcmp(a.data() + i * sizeof(Real), b.data() + i * sizeof(Real), sizeof(Real)) == 0)
      continue;
    NoteReals(Load<Real>(a, i), Load<Real>(b, i), begin + i, diff);
  }
}

void CompareHalves(DType dtype, absl::string_view a, absl::string_view b, int64_t begin,
                   ElementDiff* diff) {
  constexpr int64_t kPiece = 1024;
  uint16_t halves_a[kPiece], halves_b[kPiece];
  float values_a[kPiece], values_b[kPiece];
  const int64_t all = a.size() / sizeof(uint16_t);
  for (int64_t at = 0; at < all; at += kPiece) {
    const int64_t count = std::min(kPiece, all - at);
    // Copied, because a text's bytes need not be aligned.
    memcpy(halves_a, a.data() + at * sizeof(uint16_t), count * sizeof(uint16_t));
    memcpy(halves_b, b.data() + at * sizeof(uint16_t), count * sizeof(uint16_t));
    host::CastHalfToFp32(dtype, halves_a, values_a, count);
    host::CastHalfToFp32(dtype, halves_b, values_b, count);
    for (int64_t i = 0; i < count; ++i) {
      if (halves_a[i] != halves_b[i]) NoteReals(values_a[i], values_b[i], begin + at + i, diff);
    }
  }
}

template <typename Integer>
void CompareIntegers(absl::string_view a, absl::string_view b, int64_t begin, ElementDiff* diff) {
  using Unsigned = std::make_unsigned_t<Integer>;
  const int64_t count = a.size() / sizeof(Integer);
  for (int64_t i = 0; i < count; ++i) {
    const auto x = Load<Integer>(a, i), y = Load<Integer>(b, i);
    if (x == y) continue;
    const auto [less, more] = std::minmax(x, y);
    // In unsigned arithmetic: the difference of two int64 may not fit into one.
    Note(begin + i,
         static_cast<double>(
             static_cast<Unsigned>(static_cast<Unsigned>(more) - static_cast<Unsigned>(less))),
         diff);
  }
}

// Elements of `bits` each, by their bits alone; those below a byte are packed.
void CompareBits(int64_t bits, absl::string_view a, absl::string_view b, int64_t begin,
                 ElementDiff* diff) {
  const int64_t count = static_cast<int64_t>(a.size()) * 8 / bits;
  const auto differs_at = [&](int64_t bit) {
    return ((a[bit / 8] ^ b[bit / 8]) >> (bit % 8) & 1) != 0;
  };
  for (int64_t i = 0; i < count; ++i) {
    bool differs = false;
    for (int64_t bit = i * bits; bit < (i + 1) * bits && !differs; ++bit) differs = differs_at(bit);
    // Without a difference: the types that come here have no arithmetic (HasDifferences).
    if (differs) Note(begin + i, 0, diff);
  }
}

}  // namespace

bool HasDifferences(StoredDType dtype) {
  switch (dtype) {
    case StoredDType::kF4:
    case StoredDType::kF6E2M3:
    case StoredDType::kF6E3M2:
    case StoredDType::kF8E5M2:
    case StoredDType::kF8E4M3:
    case StoredDType::kF8E8M0:
    case StoredDType::kF8E4M3Fnuz:
    case StoredDType::kF8E5M2Fnuz:
    case StoredDType::kC64:
      return false;
    default:
      return true;
  }
}

void CompareElements(StoredDType dtype, absl::string_view a, absl::string_view b,
                     int64_t begin_elements, ElementDiff* diff) {
  TESSERA_CHECK(a.size() == b.size());
  if (a == b) return;
  switch (dtype) {
    case StoredDType::kF64:
      return CompareReals<double>(a, b, begin_elements, diff);
    case StoredDType::kF32:
      return CompareReals<float>(a, b, begin_elements, diff);
    case StoredDType::kF16:
      return CompareHalves(DType::kFp16, a, b, begin_elements, diff);
    case StoredDType::kBf16:
      return CompareHalves(DType::kBf16, a, b, begin_elements, diff);
    case StoredDType::kI64:
      return CompareIntegers<int64_t>(a, b, begin_elements, diff);
    case StoredDType::kU64:
      return CompareIntegers<uint64_t>(a, b, begin_elements, diff);
    case StoredDType::kI32:
      return CompareIntegers<int32_t>(a, b, begin_elements, diff);
    case StoredDType::kU32:
      return CompareIntegers<uint32_t>(a, b, begin_elements, diff);
    case StoredDType::kI16:
      return CompareIntegers<int16_t>(a, b, begin_elements, diff);
    case StoredDType::kU16:
      return CompareIntegers<uint16_t>(a, b, begin_elements, diff);
    case StoredDType::kI8:
      return CompareIntegers<int8_t>(a, b, begin_elements, diff);
    case StoredDType::kU8:
    case StoredDType::kBool:
      return CompareIntegers<uint8_t>(a, b, begin_elements, diff);
    default:
      return CompareBits(SizeBits(dtype), a, b, begin_elements, diff);
  }
}

}  // namespace tessera

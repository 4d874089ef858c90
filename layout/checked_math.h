// int64 arithmetic that says when it cannot be done, for sizes that come from outside.
//
// Each returns false, and leaves `*out` unspecified, where the result does not fit.
#ifndef TESSERA_LAYOUT_CHECKED_MATH_H_
#define TESSERA_LAYOUT_CHECKED_MATH_H_

#include <cstdint>

namespace tessera {

inline bool CheckedAdd(int64_t a, int64_t b, int64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}

inline bool CheckedMul(int64_t a, int64_t b, int64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}

// The least multiple of `multiple` that is >= value. Requires value >= 0, multiple >= 1.
inline bool CheckedRoundUp(int64_t value, int64_t multiple, int64_t* out) {
  const int64_t rest = value % multiple;
  if (rest == 0) {
    *out = value;
    return true;
  }
  return CheckedAdd(value, multiple - rest, out);
}

}  // namespace tessera

#endif  // TESSERA_LAYOUT_CHECKED_MATH_H_

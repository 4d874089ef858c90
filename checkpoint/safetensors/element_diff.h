// How the elements of a tensor differ from those of another of its dtype. Pure; no I/O.
//
//   bytes of A  | 1.0 | 2.0 | NaN | -0.0 |
//   bytes of B  | 1.0 | 2.5 | NaN |  0.0 |      2 differ, the first at 1, by 0.5 at most
//
// Elements are equal when their bits are, or when both are NaN: 0 and -0 differ, by nothing.
// Thread-compatible.
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_ELEMENT_DIFF_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_ELEMENT_DIFF_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "layout/stored_dtype.h"

namespace tessera {

// Whether their differences are known: not of floats below 16 bits, nor of complex numbers.
bool HasDifferences(StoredDType dtype);

struct ElementDiff {
  int64_t num_different = 0;
  int64_t first_element = 0;   // That differs, if any does.
  int64_t num_non_finite = 0;  // Of those that differ: a side is NaN or infinite.
  // Largest absolute one of the others; of 64-bit integers rounded to double. 0 without
  // HasDifferences.
  double largest = 0;
};

// Adds a piece, elements [begin_elements, begin_elements + count), to `diff`. Pieces come in order.
// Requires a.size() == b.size(), whole elements, pieces that begin between bytes.
void CompareElements(StoredDType dtype, absl::string_view a, absl::string_view b,
                     int64_t begin_elements, ElementDiff* diff);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_ELEMENT_DIFF_H_
